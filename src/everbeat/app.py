"""Everbeat: the application. Wires configuration, tasks and store together; decides nothing.

Making an application, importing its module and decorating functions touch no file and no network: the store is opened
at the first use. An application made before a fork works on both sides of it. Nothing here keeps a process alive.
"""

import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import FunctionType, MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, Self, TypeVar, overload

from everbeat.broker import Broker
from everbeat.config import AppConfig, PostgresConfig, RetryPolicy, SQLiteConfig, broker_from_url, checks, to_policy
from everbeat.config.checks import Seconds
from everbeat.config.recovery import ACTIONS
from everbeat.config.setting import CODE
from everbeat.errors import ConfigError
from everbeat.handle import TaskHandle
from everbeat.hooks import (
    AroundTask,
    ChildHook,
    Hooks,
    Subscriber,
    as_manager,
    require_child_hook,
    require_event_name,
    require_subscriber,
)
from everbeat.ids import code_of, full_name, is_typed_in, module_name, name_problem, new_id
from everbeat.model.task import DEFAULT_PRIORITY, DEFAULT_QUEUE, CrashAction
from everbeat.options import priority_problem
from everbeat.payload import decode_plain
from everbeat.task import AsyncTask, SyncTask, Task, TaskSettings

if TYPE_CHECKING:
    from everbeat.inprocess import Testing
    from everbeat.store.interface import Store
    from everbeat.workflow_handle import WorkflowHandle

P = ParamSpec("P")
R = TypeVar("R")
AroundT = TypeVar("AroundT", bound=AroundTask)
HookT = TypeVar("HookT", bound=ChildHook)
SubscriberT = TypeVar("SubscriberT", bound=Subscriber)

LONGEST_TIMEOUT_SECONDS = 31 * 86_400


class TaskDecorator(Protocol):
    """What `@app.task(...)` with options returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...


class Everbeat:
    """An application: its tasks, its configuration and the store they are sent to.

    `Everbeat()`: the store of EVERBEAT_DATABASE_URL, else of the configuration file, else `everbeat.db` here. Otherwise
    a URL such as `sqlite:///jobs.db` or `postgresql://...`, or an AppConfig. `imports`: modules that define tasks, for
    the worker. ConfigError says everything that is wrong. Nothing is opened before it is needed.
    """

    def __init__(
        self,
        url_or_config: str | AppConfig | SQLiteConfig | PostgresConfig | None = None,
        *,
        imports: Iterable[str] = (),
    ) -> None:
        self.config = _with_imports(_as_config(url_or_config), imports)
        self.make_ids: Callable[[int], list[str]] = new_id.many
        self.hooks = Hooks()
        self._tasks: dict[str, Task[..., Any]] = {}
        self._store: Store | None = None
        self._opening = threading.Lock()
        _APPS.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an Everbeat application and what refers to it can not be pickled or copied; another process imports it, "
            "and finds a task by its id: app.handle(id)"
        )

    def __repr__(self) -> str:
        return f"<Everbeat {self.config.broker.location}, {len(self._tasks)} tasks>"

    # -- tasks ------------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        timeout: Seconds | None = None,
        on_crash: CrashAction | None = None,
        max_recovery_attempts: int | None = None,
        isolated: bool = False,
        sensitive: bool = False,
    ) -> TaskDecorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Register a function as a task: `@app.task`, or `@app.task(name=..., retry=...)`."""
        if function is not None:
            return self._register(function, **options)
        return lambda function: self._register(function, **options)

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """Every registered task by its name."""
        return MappingProxyType(self._tasks)

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that define tasks; a worker imports them."""
        return tuple(self.config.imports)

    def handle(self, task_id: str) -> TaskHandle[Any]:
        """The handle of a task sent earlier. TaskNotFound at its first use if there is none."""
        problem = name_problem(task_id, "id")
        if problem is not None:
            raise ValueError(problem)
        return TaskHandle(self, task_id, None, created=False)

    def workflow_handle(self, workflow_id: str) -> "WorkflowHandle":
        """The handle of a workflow started earlier. WorkflowNotFound at its first use if there is none."""
        from everbeat.workflow_handle import WorkflowHandle

        problem = name_problem(workflow_id, "id")
        if problem is not None:
            raise ValueError(problem)
        return WorkflowHandle(self, workflow_id, created=False)

    def decoder_for(self, task_name: str) -> Callable[[bytes | None], Any]:
        """How to read results of the task with this name; plain JSON if it is not registered here."""
        task = self._tasks.get(task_name)
        return task.payload.decode_result if task is not None else decode_plain

    def _register(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        timeout: Seconds | None = None,
        on_crash: CrashAction | None = None,
        max_recovery_attempts: int | None = None,
        isolated: bool = False,
        sensitive: bool = False,
    ) -> Task[..., Any]:
        _require_function(function)
        chosen = name if name is not None else f"{module_name(function.__module__)}.{function.__name__}"
        checks.raise_for(
            (
                name_problem(chosen, "task name"),
                self._taken(chosen, function),
                name_problem(queue, "queue"),
                priority_problem(priority),
                _retry_problem(retry),
                None if timeout is None else _timeout_problem(timeout),
                None if on_crash is None else checks.one_of("on_crash", on_crash, ACTIONS),
                checks.whole("max_recovery_attempts", max_recovery_attempts, 1, 1_000, optional=True),
                checks.flag("isolated", isolated),
                checks.flag("sensitive", sensitive),
            ),
            subject=f"task {chosen}",
        )
        settings = TaskSettings(
            queue=queue,
            priority=priority,
            policy=to_policy(
                retry,
                on_crash=on_crash,
                max_recovery_attempts=max_recovery_attempts,
                isolated=isolated,
                sensitive=sensitive,
                timeout=None if timeout is None else checks.to_seconds(timeout),
            ),
        )
        kind = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
        task: Task[..., Any] = kind(self, function, chosen, settings)
        self._tasks[chosen] = task
        return task

    def _taken(self, name: str, function: Callable[..., Any]) -> str | None:
        """A function that is typed in again takes the place of the former one, as it does in Python. In a module two of
        one name are a mistake."""
        other = self._tasks.get(name)
        if other is None or (is_typed_in(function) and full_name(function) == full_name(other.function)):
            return None
        code = code_of(other.function)
        return f"the name is taken by the function at {code.co_filename}:{code.co_firstlineno}; give another name="

    # -- around tasks -----------------------------------------------------------------------------------------------

    def around_task(self, function: AroundT, /) -> AroundT:
        """Run every task inside this context manager: a function that takes the current task and yields once.

        The first one is the outermost. They see what the task raises and can not swallow it. One made by an async
        function is for async tasks only.
        """
        self.hooks.around.append(as_manager(function))
        return function

    def on_child_start(self, function: HookT, /) -> HookT:
        """Call this in every process of a worker before its first task. If it raises, the process runs none."""
        require_child_hook(function, "on_child_start")
        self.hooks.child_start.append(function)
        return function

    def on_child_stop(self, function: HookT, /) -> HookT:
        """Call this in every process of a worker before it ends by itself: not when something kills it."""
        require_child_hook(function, "on_child_stop")
        self.hooks.child_stop.append(function)
        return function

    @overload
    def on(self, event: str, function: SubscriberT, /) -> SubscriberT: ...
    @overload
    def on(self, event: str, /) -> Callable[[SubscriberT], SubscriberT]: ...

    def on(self, event: str, function: Any = None, /) -> Any:
        """Call this with each event of that name, "*" for every event, in a process of a worker after the event was
        committed: `app.on("task.recovered", function)`, or as a decorator. At least once: it may be called again."""
        require_event_name(event)
        if function is None:
            return lambda function: self.on(event, function)
        require_subscriber(function)
        self.hooks.subscribers.setdefault(event, []).append(function)
        return function

    # -- the store ----------------------------------------------------------------------------------------------------

    @property
    def store(self) -> "Store":
        """The store, opened at the first use in this process."""
        return self._store or self.open()

    def open(self) -> "Store":
        """The store, opened now if it was not. A sender has no need to: what needs it opens it."""
        with self._opening:
            if self._store is None:
                self._store = self._open_store()
            return self._store

    def _open_store(self) -> "Store":
        """Imports here and below are late: a sender must not load every store, nor what only tests use."""
        if self.config.eager:
            from everbeat.inprocess import eager_store

            return eager_store(self)
        from everbeat.store.open import open_store

        return open_store(self.config)

    def use_store(self, store: "Store | None") -> "Store | None":
        """Take another store in place of the present one, which is returned and not closed."""
        with self._opening:
            former, self._store = self._store, store
        return former

    def testing(self, *, eager: bool = False) -> "Testing":
        """`with app.testing() as t:` sends to a store that is thrown away, and `t.run_pending()` runs it, here.

        `eager`: tasks run when they are sent, as with `AppConfig(eager=True)`.
        """
        from everbeat.inprocess import Testing

        return Testing(self, eager=eager)

    def move_to(self, url: str, *, where: str) -> None:
        """Leave the configured store for another one, which a flag named."""
        self.close()
        self.config = self.config.at(url, where=where)

    def get_broker(self) -> Broker:
        """Recovery by hand. Opens nothing yet; its methods are coroutines, with blocking twins on `.sync`."""
        return Broker(self)

    def close(self) -> None:
        """Close the store. Optional; the next use opens it again."""
        with self._opening:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def worker_facts(self) -> dict[str, Any]:
        """What a supervisor needs to know, as plain JSON values: it never imports the application.

        `AppConfig.from_facts` makes the configuration of it again. Holds the store's password, so: never logged.
        """
        tasks = [
            {"name": task.name, "is_async": task.is_async, "timeout": task.timeout, "isolated": task.isolated}
            for task in self._tasks.values()
        ]
        return self.config.to_facts() | {"tasks": tasks, "events": sorted(self.hooks.subscribers)}


_APPS: "weakref.WeakSet[Everbeat]" = weakref.WeakSet()


def _replace_locks() -> None:
    """In the child of a fork: a lock may be held by a thread of the parent, for ever. Stores see to themselves."""
    for app in tuple(_APPS):
        app._opening = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks)


def _as_config(given: object) -> AppConfig:
    match given:
        case None:
            return AppConfig()
        case AppConfig():
            return given
        case str():
            return AppConfig(broker=broker_from_url(given))
        case SQLiteConfig() | PostgresConfig():
            return AppConfig(broker=given)
    raise ConfigError(f"Everbeat() takes a URL or an AppConfig, not {type(given).__name__}")


def _with_imports(config: AppConfig, imports: Iterable[str]) -> AppConfig:
    """Those given here join those of the code, and take the place of those of a file or a variable."""
    if isinstance(imports, str) or not isinstance(imports, Iterable):
        return config.changed(CODE, imports=imports)  # which says what is wrong
    imports = tuple(imports)
    if not imports:
        return config
    before = config.imports if config.origin("imports") == CODE else ()
    return config.changed(CODE, imports=(*before, *imports))


def _require_function(function: object) -> None:
    if not inspect.isfunction(function):
        raise TypeError(f"@app.task goes on a function, not on {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator; a task returns one value")
    if _is_method(function):
        raise TypeError(
            f"{function.__qualname__} is a method, and its object can not travel with the task; make it a function, or "
            f"a staticmethod with @app.task below @staticmethod"
        )


def _is_method(function: FunctionType) -> bool:
    """A function of a class body whose first parameter is the object or the class, and that has none yet."""
    if inspect.ismethod(inspect.unwrap(function)):
        return False
    owner = function.__qualname__.rpartition(".")[0]
    code = code_of(function)
    first = code.co_varnames[: code.co_argcount][:1]
    return bool(owner) and not owner.endswith("<locals>") and first in (("self",), ("cls",))


def _retry_problem(retry: object) -> str | None:
    if retry is None or isinstance(retry, RetryPolicy):
        return None
    return f"retry must be a RetryPolicy such as RetryPolicy(max_attempts=5), not {retry!r}"


def _timeout_problem(timeout: object) -> str | None:
    problem = checks.number("timeout", checks.in_seconds(timeout), 0, LONGEST_TIMEOUT_SECONDS, unit=" s")
    if problem is None and checks.in_seconds(timeout) == 0:
        return "timeout must be more than 0; leave it out for none"
    return problem
