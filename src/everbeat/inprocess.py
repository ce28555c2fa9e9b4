"""Run tasks in this process, for tests: `app.testing()` and eager mode.

Nothing is imitated: the store is a real one in a temporary directory, and a task is claimed, run, decided about and
settled by what a worker uses for it. What only processes have is missing: crashes, timeouts, interrupts.

Time stands still until a test moves it. A retry is run at once unless the test asks for its backoff.
"""

import asyncio
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import Context, ContextVar, copy_context
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from everbeat.clock import SystemClock
from everbeat.config.checks import Seconds, in_seconds, number, to_seconds
from everbeat.current import CURRENT, CurrentTask, Ownership, Progress
from everbeat.decide.finish import finish_for
from everbeat.decide.room import Room
from everbeat.errors import TaskInterrupted
from everbeat.hooks import ChildHook
from everbeat.model.flow import NewWorkflow, NodeStatus, WorkflowChange, WorkflowInfo
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, Enqueued, Finished, NewTask, Outcome, TaskInfo
from everbeat.model.worker import NewWorker
from everbeat.run import calling
from everbeat.run.calling import Calling
from everbeat.run.failure import error_of
from everbeat.run.lockfile import this_host
from everbeat.run.telling import as_json
from everbeat.store.messages import Ending, Flush, Report, Sent, TaskFilter
from everbeat.store.sqlite.store import SQLiteStore

if TYPE_CHECKING:
    from everbeat.app import Everbeat

WORKER_ID = "in-process"
LONGEST_ADVANCE_SECONDS = 100 * 366 * 86_400
NO_JITTER = 0.5
ENDS_A_RUN = (Exception, SystemExit, GeneratorExit, TaskInterrupted, asyncio.CancelledError)
"""What a worker would store as a failure. Ctrl-C, and `pytest.fail()` inside a task, end the test instead."""


_UNDER_WAY: ContextVar[tuple[str, ...]] = ContextVar("everbeat.under_way", default=())
"""The tasks inside which this code runs: none of them ends while it waits."""


class StandingClock:
    """Begins now and stands still until it is moved."""

    def __init__(self) -> None:
        self._shift = 0
        self._wall, self._mono = time.time_ns() // 1000, time.monotonic_ns() // 1000
        self.id = SystemClock().id

    def wall_us(self) -> int:
        return self._wall + self._shift

    def mono_us(self) -> int:
        return self._mono + self._shift

    def advance(self, seconds: float) -> None:
        self._shift += round(seconds * 1_000_000)


class ThrowawayStore(SQLiteStore):
    """A store in a temporary directory, with a worker in this process. Waiting for a task runs what is ready."""

    def __init__(self, app: "Everbeat", *, eager: bool) -> None:
        self.clock = StandingClock()
        self._eager = eager
        directory = Path(tempfile.mkdtemp(prefix="everbeat-"))
        self._remove = weakref.finalize(self, _remove, directory, os.getpid())
        super().__init__(directory / "testing.db", durability="normal", clock=self.clock)
        self.worker = InProcessWorker(app, self)

    def enqueue(self, tasks: Sequence[NewTask]) -> Sequence[Enqueued]:
        if not self._eager:
            return super().enqueue(tasks)
        stored = super().enqueue([task._replace(kind=task.kind._replace(delay_us=None, run_at=None)) for task in tasks])
        self.worker.run_ready(retries=True)
        return stored

    def enqueue_on(self, connection: Any, tasks: Sequence[NewTask]) -> Sent:
        """The connection is to the real store, and so not part of the test."""
        return Sent(self.enqueue(tasks), is_open=lambda: False)

    def wait(self, task_id: str, timeout: float | None) -> Finished | None:
        """What is not finished by running all that is ready will not be by waiting, unless another thread runs it."""
        if self.finished(task_id) is None:
            self.worker.run_ready(retries=True)
        info = self.get(task_id, full=False)
        is_running = info is not None and info.status is TaskStatus.RUNNING and task_id not in _UNDER_WAY.get()
        return super().wait(task_id, timeout if is_running else 0)

    async def await_(self, task_id: str, timeout: float | None) -> Finished | None:
        return await asyncio.to_thread(self.wait, task_id, timeout)

    def start_workflow(self, flows: Sequence[NewWorkflow]) -> Enqueued:
        if not self._eager:
            return super().start_workflow(flows)
        at_once = [replace(flow, nodes=[replace(node, delay_us=0) for node in flow.nodes]) for flow in flows]
        stored = super().start_workflow(at_once)
        self.worker.run_ready(retries=True)
        return stored

    def change_workflow(self, change: WorkflowChange, workflow_id: str, *, actor: str) -> bool:
        is_changed = super().change_workflow(change, workflow_id, actor=actor)
        if self._eager:
            self.worker.run_ready(retries=True)
        return is_changed

    def wait_workflow(self, workflow_id: str, timeout: float | None) -> WorkflowInfo | None:
        """As `wait`: none of its tasks is ready any more, but one may run in another thread."""
        self.worker.run_ready(retries=True)
        return super().wait_workflow(workflow_id, timeout if self._goes_on(workflow_id) else 0)

    def _goes_on(self, workflow_id: str) -> bool:
        """By a task that does not wait itself for what asks."""
        running = [node for node in self.workflow_nodes(workflow_id) if node.status is NodeStatus.RUNNING]
        inside = any(self._goes_on(node.workflow_id) for node in running if node.workflow_id is not None)
        return inside or any(node.task_id not in (None, *_UNDER_WAY.get()) for node in running)

    async def await_workflow(self, workflow_id: str, timeout: float | None) -> WorkflowInfo | None:
        return await asyncio.to_thread(self.wait_workflow, workflow_id, timeout)

    def close(self) -> None:
        try:
            self.worker.close()
        finally:
            super().close()
            self._remove()


class InProcessWorker:
    """Claims one task at a time and runs it in the thread that asks for it."""

    def __init__(self, app: "Everbeat", store: ThrowawayStore) -> None:
        self._app = app
        self._store = store
        self._runner: asyncio.Runner | None = None
        self._running_loop = threading.Lock()
        self._progress: dict[Ownership, Progress] = {}
        self._has_started = False
        store.register(NewWorker(id=WORKER_ID, name=WORKER_ID, host=this_host(), processes=1, version=""))

    def run_ready(self, *, retries: bool, limit: int | None = None) -> int:
        """Run what is ready, and what becomes ready by it; how many runs that were."""
        runs = 0
        while limit is None or runs < limit:
            claim = self._claim()
            if claim is None:
                break
            self._run(claim, retries=retries)
            runs += 1
        return runs

    def close(self) -> None:
        if self._has_started:
            self._run_hooks(reversed(self._app.hooks.child_stop))
            self._has_started = False
        if self._runner is not None:
            _beside_loops(self._runner.close)
            self._runner = None

    # -- one run ------------------------------------------------------------------------------------------------------

    def _claim(self) -> Claim | None:
        self._store.expire(settle_us=0)
        names = frozenset(self._app.tasks)
        room = Room(sync_names=names, async_names=frozenset(), queues=None, slots={1: 0})
        claims = self._store.flush(Flush(worker_id=WORKER_ID, room=room)).claims
        return claims[0] if claims else None

    def _run(self, claim: Claim, *, retries: bool) -> None:
        if not self._has_started:
            self._has_started = True
            self._run_hooks(self._app.hooks.child_start)
        outcome = self._call(claim)
        verdict = finish_for(claim, outcome, jitter=NO_JITTER)
        if retries:
            verdict = verdict._replace(delay_us=0)
        said = self._progress.pop((claim.seq, claim.fence), None)
        reports = [] if said is None else [Report(claim=claim, pid=os.getpid(), progress=as_json(said))]
        ending = Ending(claim=claim, verdict=verdict, outcome=outcome, pid=os.getpid())
        self._store.flush(Flush(worker_id=WORKER_ID, endings=[ending], reports=reports))

    def _call(self, claim: Claim) -> Outcome:
        began_at = self._store.clock.wall_us()
        task = self._app.tasks[claim.name]
        current = CurrentTask(
            id=claim.id, name=claim.name, attempt=claim.attempt, fence=claim.fence, crash_count=claim.crash_count,
            worker_id=WORKER_ID, seq=claim.seq, line=self,
        )  # fmt: skip
        call = Calling(task, current, self._app.hooks.around)
        context = copy_context()
        context.run(CURRENT.set, current)
        context.run(_UNDER_WAY.set, (*_UNDER_WAY.get(), claim.id))
        result = error = None
        try:
            if task.is_async:
                result = self._wait_for(call.arun(claim.args), context)
            else:
                result = context.run(call.run, claim.args)
        except ENDS_A_RUN as exception:
            error = error_of(
                exception, call.stage, __file__, calling.__file__, secrets=partial(task.secrets_in, claim.args)
            )
        return Outcome(result=result, error=error, began_at=began_at, ended_at=self._store.clock.wall_us())

    def _run_hooks(self, hooks: Iterable[ChildHook]) -> None:
        for hook in hooks:
            done = hook()
            if asyncio.iscoroutine(done):
                self._wait_for(done, copy_context())

    def _wait_for(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> Any:
        """In the one loop that is kept for it, so that what tasks leave in it is there for the next; where that can not
        be (a loop runs in this thread, or a task is waited for by another), in a loop of its own."""
        if _loop_runs_here():
            return _in_a_thread(lambda: self._wait_for(coroutine, context))
        if not self._running_loop.acquire(blocking=False):
            with asyncio.Runner() as runner:
                return runner.run(coroutine, context=context)
        try:
            self._runner = self._runner or asyncio.Runner()
            return self._runner.run(coroutine, context=context)
        finally:
            self._running_loop.release()

    # -- what a task says of itself ---------------------------------------------------------------------------------

    def progress(self, run: Ownership, progress: Progress) -> None:
        self._progress[run] = progress

    def heartbeat(self, run: Ownership) -> None:
        pass

    def is_cancelled(self, run: Ownership) -> bool:
        return False


class Testing:
    """An application under test: `with app.testing() as t`. Its own store is not touched."""

    __test__ = False
    """Not a test of pytest's."""

    def __init__(self, app: "Everbeat", *, eager: bool = False) -> None:
        self._app = app
        self._eager = eager
        self._store: ThrowawayStore | None = None

    def __enter__(self) -> Self:
        if self._store is not None:
            raise RuntimeError("this app.testing() is in use; call app.testing() again for another")
        self._store = ThrowawayStore(self._app, eager=self._eager)
        self._former = self._app.use_store(self._store)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._opened.close()  # with `on_child_stop`, which may send tasks, too
        finally:
            self._app.use_store(self._former)
            self._store = None

    @property
    def now(self) -> datetime:
        """The time of the store. It stands still until `advance`."""
        return datetime.fromtimestamp(self._opened.clock.wall_us() / 1_000_000, tz=UTC)

    def advance(self, seconds: Seconds) -> None:
        """Let that much time pass: for delays, `run_at`, and the backoff of retries."""
        problem = number("seconds", in_seconds(seconds), 0, LONGEST_ADVANCE_SECONDS, unit=" s")
        if problem is not None:
            raise ValueError(problem)
        self._opened.clock.advance(to_seconds(seconds))

    def run_pending(self, *, retries: bool = True, limit: int | None = None) -> int:
        """Run every task that is ready, and those that they send; how many runs that were.

        A task that fails and may be tried again is, at once. With `retries=False` it waits for its backoff, and
        `advance` makes it ready.
        """
        return self._opened.worker.run_ready(retries=retries, limit=limit)

    def tasks(self, *, name: str | None = None, status: TaskStatus | None = None) -> list[TaskInfo]:
        """The tasks that were sent, in that order."""
        wanted = TaskFilter(
            names=() if name is None else (name,), statuses=() if status is None else (status,), limit=1_000_000
        )
        return self._opened.tasks(wanted)[::-1]

    @property
    def _opened(self) -> ThrowawayStore:
        if self._store is None:
            raise RuntimeError("only inside `with app.testing() as t:`")
        return self._store


def eager_store(app: "Everbeat") -> ThrowawayStore:
    return ThrowawayStore(app, eager=True)


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _beside_loops(function: Callable[[], Any]) -> Any:
    """A loop can be driven, or closed, only where no other one runs."""
    return _in_a_thread(function) if _loop_runs_here() else function()


def _in_a_thread(function: Callable[[], Any]) -> Any:
    """The caller's loop stands still meanwhile, as it does for any blocking call."""
    done: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            done.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            raised.append(error)

    thread = threading.Thread(target=run, name="everbeat-testing")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return done[0]


def _remove(directory: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in the child of a fork
        shutil.rmtree(directory, ignore_errors=True)
