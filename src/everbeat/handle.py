"""A handle: what the sender keeps of a task, to look at it, cancel it, or wait for its result.

Waiting goes on through retries and through outages of the store, until the time given is over. Giving up never affects
the task. The async twins run the blocking call in a thread, except `aresult`, which may wait for hours and holds none.
"""

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from everbeat.aside import in_thread, pause
from everbeat.config.checks import Seconds, in_seconds, number, to_seconds
from everbeat.errors import ResultTimeout, StoreUnavailable, TaskCancelled, TaskExpired, TaskFailed, TaskNotFound
from everbeat.model.state import TaskStatus
from everbeat.model.task import Finished, TaskInfo

if TYPE_CHECKING:
    from everbeat.app import Everbeat
else:
    Everbeat = object  # for msgspec, which looks at what a struct is made of where somebody annotates with it

R = TypeVar("R")

SENDER = "sender"
"""The actor of what is asked for through a handle."""
LONGEST_WAIT_SECONDS = 100 * 366 * 86_400
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


class TaskHandle(msgspec.Struct, Generic[R], eq=False, gc=False):
    """What the sender keeps of a task: its id, and ways to look at it, cancel it, or wait for its result.

    A struct that the garbage collector leaves alone: who sends a hundred thousand tasks gets as many of these.
    """

    _app: "Everbeat"
    id: str
    _decode: Callable[[bytes | None], Any] | None
    created: bool
    """This call stored the task. False: it was there before, or the handle was made from an id."""
    _is_open: Callable[[], bool] | None = None
    """Whether the user's own transaction that it was sent in is still open."""

    def __repr__(self) -> str:
        return f"<handle of task {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskHandle) and (self.id, self._app) == (other.id, other._app)

    def __hash__(self) -> int:
        return hash(self.id)

    def status(self) -> TaskStatus:
        """Where it stands now. TaskNotFound if nobody knows the id."""
        return self._look(full=False).status

    def info(self) -> TaskInfo:
        """Everything about the task, with its attempts and history."""
        return self._look(full=True)

    def cancel(self) -> bool:
        """Ask that the task does not run, or stops. False if it had ended before."""
        asked = self._app.store.cancel(self.id, actor=SENDER)
        if not asked:
            self._look(full=False)  # an id that nobody knows is an error, not a task that has ended
        return asked

    def result(self, timeout: Seconds | None = None) -> R:
        """What the task returned. None waits without limit, 0 does not wait.

        Raises TaskFailed, TaskCancelled, TaskExpired, ResultTimeout or TaskNotFound; and RuntimeError inside the open
        transaction that the task was sent in, which it would wait for without end.
        """
        self._require_committed()
        patience = Patience(self.id, timeout)
        while True:
            try:
                finished = self._app.store.wait(self.id, patience.left())
                if finished is None:
                    raise patience.timeout()
                return self._outcome(finished)
            except StoreUnavailable as outage:
                time.sleep(patience.pause(outage))

    async def aresult(self, timeout: Seconds | None = None) -> R:
        """`result`, without holding a thread while it waits."""
        if self._is_open is not None:
            await in_thread(self._require_committed)
        patience = Patience(self.id, timeout)
        while True:
            try:
                store = await in_thread(self._app.open)
                finished = await store.await_(self.id, patience.left())
                if finished is None:
                    raise patience.timeout()
                return await in_thread(self._outcome, finished)
            except StoreUnavailable as outage:
                await pause(patience.pause(outage))

    async def astatus(self) -> TaskStatus:
        """`status`, awaited."""
        return await in_thread(self.status)

    async def ainfo(self) -> TaskInfo:
        """`info`, awaited."""
        return await in_thread(self.info)

    async def acancel(self) -> bool:
        """`cancel`, awaited."""
        return await in_thread(self.cancel)

    def _require_committed(self) -> None:
        try:
            is_open = self._is_open is not None and self._is_open()
        except StoreUnavailable:  # an outage ends every transaction
            is_open = False
        if is_open:
            raise RuntimeError(
                f"task {self.id} was sent in a transaction that is still open, so no worker can see it. "
                f"Commit before waiting for its result."
            )
        self._is_open = None

    def _look(self, *, full: bool) -> TaskInfo:
        store = self._app.store
        info = store.get(self.id, full=full)
        if info is None:
            raise TaskNotFound(self.id, where=store.location)
        return info

    def _outcome(self, finished: Finished) -> R:
        match finished.status:
            case TaskStatus.COMPLETED:
                decode = self._decode or self._app.decoder_for(self._look(full=False).name)
                return cast(R, decode(finished.result))
            case TaskStatus.CANCELLED:
                raise TaskCancelled(self.id)
            case TaskStatus.EXPIRED:
                raise TaskExpired(self.id)
        error = finished.error
        raise TaskFailed(
            task_id=self.id,
            error_code=error.code if error else "UNKNOWN",
            message=error.message if error else "the store has no details",
            exception_type=error.exception_type if error else None,
            traceback=error.traceback if error else None,
            attempt=finished.attempt,
        )


class Patience:
    """How long one wait may still take, and how long to pause while the store is away."""

    def __init__(self, task_id: str, timeout: Seconds | None) -> None:
        self._task_id = task_id
        self._pause = FIRST_PAUSE
        if timeout is not None:
            problem = number("timeout", in_seconds(timeout), 0, LONGEST_WAIT_SECONDS, unit=" s")
            if problem is not None:
                raise ValueError(f"{problem}; None waits without limit")
        self._timeout = None if timeout is None else to_seconds(timeout)
        self._began = time.monotonic()

    def left(self) -> float | None:
        if self._timeout is None:
            return None
        return max(0.0, self._began + self._timeout - time.monotonic())

    def timeout(self, *, store_away: bool = False) -> ResultTimeout:
        return ResultTimeout(self._task_id, self._timeout or 0.0, store_away=store_away)

    def pause(self, outage: StoreUnavailable) -> float:
        """Seconds to wait before the store is asked again. Raises ResultTimeout when the time is over."""
        left = self.left()
        if left == 0:
            raise self.timeout(store_away=True) from outage
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return pause if left is None else min(pause, left)
