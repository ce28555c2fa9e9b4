"""A task: a function that can also be sent.

`Task` keeps the function, its name and its policy; `Sender` adds the options of one kind of sending. Both are typed
like the function: what a type checker accepts as a call it accepts as an `enqueue`.

Every argument is encoded and checked before anything is stored, so one bad call in `enqueue_many` sends nothing at all.
"""

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from everbeat.aside import in_thread
from everbeat.config.checks import Seconds, whole
from everbeat.errors import PayloadError, StoreUnavailable, TaskConflict
from everbeat.handle import TaskHandle
from everbeat.ids import name_problem
from everbeat.model.task import Alike, AllCreated, Enqueued, NewTask, TaskKind, TaskPolicy
from everbeat.options import PLAIN, OwnConnection, SendOptions, raise_if
from everbeat.payload import Payload
from everbeat.secrecy import secrets_in

if TYPE_CHECKING:
    from everbeat.app import Everbeat

P = ParamSpec("P")
R = TypeVar("R")

LARGEST_BATCH = 1_000_000
ENCODED_AT_ONCE = 1000
NO_NAMES: Mapping[str, Any] = {}
OF_KIND = attrgetter("queue", "priority", "delay", "run_at", "exclusive_key", "good_until")
"""What the kind of a task is made of, in the options of a sending."""


class Call(Generic[P]):
    """The arguments of one call, made by `task.args(...)`, and its own options, by `task.options(...).args(...)`."""

    __slots__ = ("args", "kwargs", "options")

    def __init__(self, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.args = args
        self.kwargs = kwargs
        self.options: SendOptions | None = None


Calls = Sequence[tuple[Any, ...] | Call[Any]]


class Sendable(Generic[P, R]):
    """The four ways to send a call: one or many, blocking or awaited."""

    __slots__ = ()

    def _send(self, calls: Calls, batch_size: int | None = None) -> list[TaskHandle[R]]:
        raise NotImplementedError

    def _send_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskHandle[R]:
        raise NotImplementedError

    async def _asend(self, calls: Calls, batch_size: int | None = None) -> list[TaskHandle[R]]:
        return await in_thread(self._send, calls, batch_size)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Store a call of the task. When this returns, the task is safe."""
        return self._send_one(args, kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """`enqueue`, awaited."""
        return (await self._asend((Call(*args, **kwargs),)))[0]

    def enqueue_many(
        self, calls: Iterable[tuple[Any, ...] | Call[P]], batch_size: int | None = None
    ) -> list[TaskHandle[R]]:
        """Store many calls, each a tuple of positional arguments or `task.args(...)`; handles come in the same order.

        One transaction, all or none; with `batch_size`, one transaction per batch. A call that has options of its own,
        `task.options(unique_key="invoice 17").args(...)`, is sent with these and no others.
        """
        return self._send(_checked(calls), batch_size)

    async def aenqueue_many(
        self, calls: Iterable[tuple[Any, ...] | Call[P]], batch_size: int | None = None
    ) -> list[TaskHandle[R]]:
        """`enqueue_many`, awaited."""
        return await self._asend(_checked(calls), batch_size)

    def args(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """Arguments for `enqueue_many`, typed like the function."""
        return Call(*args, **kwargs)


class Sender(Sendable[P, R]):
    """A task with options: `task.options(delay=60)`. May be kept and used many times."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: "Task[P, R]", options: SendOptions) -> None:
        self._task = task
        self._options = options

    @property
    def task(self) -> "Task[P, R]":
        return self._task

    @property
    def sent_with(self) -> SendOptions:
        return self._options

    def args(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """Arguments for `enqueue_many`, sent with these options."""
        if self._options.connection is not None:
            raise ValueError("connection= is for all calls: task.options(connection=...).enqueue_many(...)")
        call: Call[P] = Call(*args, **kwargs)
        call.options = self._options
        return call

    def _send(self, calls: Calls, batch_size: int | None = None) -> list[TaskHandle[R]]:
        return self._task.send(calls, self._options, batch_size)

    def _send_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskHandle[R]:
        return self._task.send_one(args, kwargs, self._options)

    async def _asend(self, calls: Calls, batch_size: int | None = None) -> list[TaskHandle[R]]:
        if self._options.connection is not None:  # which belongs to this thread
            return self._send(calls, batch_size)
        return await in_thread(self._send, calls, batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What the decorator said about a task."""

    queue: str
    priority: int
    policy: TaskPolicy


class Task(Sendable[P, R]):
    """A registered function. Calling it is a plain call. `R` is what a run results in; for an async one, awaited."""

    is_async = False

    def __init__(self, app: "Everbeat", function: Callable[P, Any], name: str, settings: TaskSettings) -> None:
        self._app = app
        self.function = function
        self.name = name
        self.queue = settings.queue
        self.priority = settings.priority
        self.policy = settings.policy
        self.timeout = self.policy.timeout
        self.isolated = self.policy.isolated
        self.sensitive = self.policy.sensitive
        self.payload = Payload(
            function, max_args_bytes=app.config.max_args_bytes, max_result_bytes=app.config.max_result_bytes
        )
        self._stored_policy = self.policy.dump()
        self._plain = self._kind(PLAIN)
        self.__wrapped__ = function
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def __reduce__(self) -> str:
        """A function travels to another process by its name, and so does the task that has taken its place."""
        return self.__qualname__

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        unique_key: str | None = None,
        exclusive_key: str | None = None,
        good_until: datetime | None = None,
        id: str | None = None,
        connection: OwnConnection | None = None,
    ) -> Sender[P, R]:
        """The same task, sent later, elsewhere, under a key or a given id. ValueError for what can not be.

        `unique_key`: while a task of this name and key has not ended no second one is stored; the handle is that one's,
        and its `created` is False. `exclusive_key`: no two of any name run at once.
        `good_until`: EXPIRED if it has not started by then. `connection`: part of the transaction on your own
        connection to the store's database, stored when you commit: one of sqlite3 or psycopg, or a Django connection or
        a SQLAlchemy session or connection over them.
        """
        return Sender(
            self,
            SendOptions(
                delay=delay, run_at=run_at, priority=priority, queue=queue, unique_key=unique_key,
                exclusive_key=exclusive_key, good_until=good_until, id=id, connection=connection,
            ),
        )  # fmt: skip

    def handle(self, task_id: str) -> TaskHandle[R]:
        """The handle of a task sent earlier. TaskNotFound at its first use if there is none."""
        raise_if(name_problem(task_id, "id"))
        return TaskHandle(self._app, task_id, self.payload.decode_result, created=False)

    def read_args(self, args: Sequence[Any] | Mapping[str, Any]) -> Call[P]:
        """A call from plain JSON values: `task.enqueue_many([task.read_args({"at": "2026-03-01T12:00:00Z"})])`."""
        positional, named = self.payload.read_args(args)
        return Call(*positional, **named)

    # -- for the worker -----------------------------------------------------------------------------------------------

    def decode_args(self, raw: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Stored arguments, as the function takes them."""
        return self.payload.decode_args(raw)

    def encode_result(self, value: Any) -> bytes:
        """What the function returned, as it is stored."""
        return self.payload.encode_result(value)

    def secrets_in(self, raw: bytes) -> frozenset[str]:
        """The values among stored arguments that the application redacts, for whoever describes an error."""
        return secrets_in(raw, self._app.config.redact)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, calls: Calls, batch_size: int | None = None) -> list[TaskHandle[R]]:
        return self.send(calls, PLAIN, batch_size)

    def _send_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskHandle[R]:
        return self.send_one(args, kwargs, PLAIN)

    def send_one(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: SendOptions) -> TaskHandle[R]:
        """One call by itself: the same as `send`, with nothing around it."""
        kind = self._plain if options is PLAIN else self._kind(options)
        encoded = self.payload.encode_args(args, kwargs)
        task_id = options.id or self._app.make_ids(1)[0]
        task = NewTask(task_id, encoded, kind, options.unique_key, options.id is None)
        if options.connection is not None:
            return self._handles_of(*self._app.store.enqueue_on(options.connection, [task]))[0]
        try:
            stored = self._app.store.enqueue([task])
        except StoreUnavailable as outage:
            raise outage.while_sending([task.id], []) from outage
        return self._handles_of(stored)[0]

    def send(self, calls: Calls, options: SendOptions, batch_size: int | None) -> list[TaskHandle[R]]:
        """Many calls with the same options, except those that have options of their own."""
        raise_if(whole("batch_size", batch_size, 1, LARGEST_BATCH, optional=True))
        if options.id is not None and len(calls) > 1:
            raise ValueError(f"id {options.id!r} can not be given to {len(calls)} tasks; give each its own")
        tasks = self._new_tasks(calls, options)
        if options.connection is not None:
            return self._handles_of(*self._app.store.enqueue_on(options.connection, tasks))
        size = batch_size or len(tasks) or 1
        handles: list[TaskHandle[R]] = []
        for start in range(0, len(tasks), size):
            try:
                stored = self._app.store.enqueue(tasks[start : start + size])
            except StoreUnavailable as outage:
                doubtful = [task.id for task in tasks[start : start + size]]
                raise outage.while_sending(doubtful, [handle.id for handle in handles]) from outage
            try:
                handles += self._handles_of(stored)
            except TaskConflict as conflict:
                raise TaskConflict(conflict.task_id, stored_ids=[handle.id for handle in handles]) from None
        return handles

    def _new_tasks(self, calls: Calls, options: SendOptions) -> Sequence[NewTask]:
        args = self._encoded(calls)
        ids: Sequence[str] = self._app.make_ids(len(calls))
        given = [] if _are_tuples(calls) else [options if isinstance(c, tuple) else c.options or options for c in calls]
        if all(one is options for one in given):
            kind = self._plain if options is PLAIN else self._kind(options)
            same = None if options.unique_key is None else [options.unique_key] * len(calls)
            return Alike(kind, ids if options.id is None else [options.id] * len(calls), args, same)
        known: dict[Any, TaskKind] = {}
        kinds = [
            known.get(said) or known.setdefault(said, self._kind(one))
            for one, said in zip(given, map(OF_KIND, given), strict=True)
        ]
        ids = [one.id or task_id for one, task_id in zip(given, ids, strict=True)]
        keys = [one.unique_key for one in given]
        if len(known) == 1:
            return Alike(kinds[0], ids, args, keys)
        return list(map(NewTask, ids, args, kinds, keys))

    def _kind(self, options: SendOptions) -> TaskKind:
        return TaskKind(
            name=self.name,
            queue=options.queue or self.queue,
            priority=options.priority or self.priority,
            max_attempts=self.policy.max_attempts,
            policy=self._stored_policy,
            delay_us=options.delay_us,
            run_at=options.run_at_us,
            exclusive_key=options.exclusive_key,
            good_until=options.good_until_us,
        )

    def _encoded(self, calls: Calls) -> list[bytes]:
        found: list[bytes] = []
        for at in range(0, len(calls), ENCODED_AT_ONCE):
            some = calls[at : at + ENCODED_AT_ONCE]
            parts = _parts(some)
            found += self.payload.encode_together(parts) or self._one_by_one(parts, at, is_alone=len(calls) == 1)
        return found

    def _one_by_one(
        self, calls: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]], first: int, *, is_alone: bool
    ) -> Iterator[bytes]:
        for index, (args, kwargs) in enumerate(calls, first):
            try:
                yield self.payload.encode_args(args, kwargs)
            except PayloadError as error:
                raise error if is_alone else PayloadError(f"call {index}: {error}") from error
            except TypeError as error:
                raise error if is_alone else TypeError(f"call {index}: {error}") from error

    def _handles_of(self, stored: Sequence[Enqueued], is_open: Callable[[], bool] | None = None) -> list[TaskHandle[R]]:
        app, decode = self._app, self.payload.decode_result
        if type(stored) is AllCreated:
            return [TaskHandle(app, task_id, decode, True, is_open) for task_id in stored.ids]
        for task_id, _, conflict in stored:
            if conflict:
                raise TaskConflict(task_id)
        return [TaskHandle(app, task_id, decode, created, is_open) for task_id, created, _ in stored]


class SyncTask(Task[P, R]):
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """Whoever asks is told that it is a coroutine function: a plain one would be called, and never awaited."""

    is_async = True

    def __init__(self, app: "Everbeat", function: Callable[P, Any], name: str, settings: TaskSettings) -> None:
        super().__init__(app, function, name, settings)
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)

    if sys.version_info < (3, 12):

        @property
        def _is_coroutine(self) -> object:
            """What `asyncio.iscoroutinefunction` looks for."""
            from asyncio import coroutines

            return vars(coroutines)["_is_coroutine"]

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


def _checked(calls: Iterable[Any]) -> Calls:
    given = list(calls)
    for index, call in enumerate(() if _are_tuples(given) else given):
        if not isinstance(call, (tuple, Call)):
            kind = type(call).__name__
            raise TypeError(f"call {index} must be a tuple of arguments such as (1, 2), or task.args(...), not {kind}")
    return given


def _parts(calls: Calls) -> list[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """Positional and named arguments of each."""
    if _are_tuples(calls):
        return [*zip(cast(Sequence[tuple[Any, ...]], calls), repeat(NO_NAMES), strict=False)]
    return [(one, NO_NAMES) if isinstance(one, tuple) else (one.args, one.kwargs) for one in calls]


def _are_tuples(calls: Calls) -> bool:
    """Known without a look at each of them."""
    return {*map(type, calls)} <= {tuple}
