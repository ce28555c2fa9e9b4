"""A child: the process that runs tasks, one after the other, or one in which `async_child` runs many.

Begin mark first, then arguments, then code, then the outcome, sent before the next task is looked at: whatever kills
this process, the supervisor can tell which task it had and what was finished.

It dies with its fork server (PDEATHSIG) and with its supervisor (leash), leads a process group that is killed with it,
and holds its byte of the worker's lock file as long as it lives. It never reads the store; the supervisor decides what
becomes of a task.

As a program (`python -m everbeat.run.child PLAN`) it is the child of an application that does not survive a fork.
"""

import asyncio
import ctypes
import faulthandler
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import msgspec

from everbeat.current import CURRENT, CurrentTask, Ownership
from everbeat.hooks import ChildHook
from everbeat.model.task import Outcome
from everbeat.report import log
from everbeat.run import calling, failure, leash
from everbeat.run.async_child import AsyncChild, exit_on_return_after_fork
from everbeat.run.calling import Calling
from everbeat.run.failure import cut, error_of, interruption, unknown_task
from everbeat.run.journal import Journal
from everbeat.run.loading import RunnableApp, RunnableTask, load_app
from everbeat.run.lockfile import lock_child_byte
from everbeat.run.speech import Mouth
from everbeat.run.subscriber import SubscriberChild
from everbeat.run.telling import Teller
from everbeat.run.tickets import Intake
from everbeat.run.wire import GONE, ChildKind, ChildPlan, Inbox, InterruptKind, Job, Kit, NotStarted, ToChild, adopt

EXIT_NOT_STARTED = 70
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def live(plan: ChildPlan, app: RunnableApp) -> None:
    """Become the child that the plan describes, and run tasks until the supervisor closes the channel."""
    os.setpgid(0, 0)
    die_with_parent(signal.SIGKILL, plan.server_pid)
    leash.put_on(plan.leash_fd)
    disregard_stop_signals()
    leave_stop_signals_to_forks()
    write_lines_at_once()
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # a crash in C code says where it happened
    lock_child_byte(plan.lock_fd, plan.slot)
    journal = Journal.map(plan.journal_fd)
    inbox = Inbox(adopt(plan.task_fd), msgspec.msgpack.Decoder(ToChild))
    for fd in (plan.ticket_fd, plan.outcome_fd, plan.lock_fd):
        os.set_inheritable(fd, False)
    mouth = Mouth(plan.outcome_fd, inbox.end)
    teller = Teller(mouth)
    _beat_from_a_thread(journal, plan.slot, plan.kit.beat_seconds, teller)
    _set_up_log(plan.kit)
    child: AsyncChild | SyncChild | SubscriberChild
    if plan.kind is ChildKind.EVENTS:
        child = SubscriberChild(app.hooks.subscribers, Intake(inbox, plan.ticket_fd), mouth)
    elif plan.kind is ChildKind.ASYNC:
        child = AsyncChild(app, inbox, plan.ticket_fd, mouth, journal, teller)
    else:
        child = SyncChild(app, Intake(inbox, plan.ticket_fd), mouth, journal, teller, plan)
    _start_up(app.hooks.child_start, child.wait_for, mouth)
    child.serve()
    _shut_down(app.hooks.child_stop, child.wait_for)


def _set_up_log(kit: Kit) -> None:
    """A handler if the application has none; and whatever is logged inside a task says inside which."""
    log.set_up(level=kit.log_level, style=kit.log_format, root_too=True)

    def fields() -> dict[str, Any] | None:
        task = CURRENT.get(None)
        if task is None:
            return None
        return {"task_id": task.id, "task_name": task.name, "attempt": task.attempt, "worker": kit.worker_id}

    log.mark_records(fields)


def _start_up(hooks: Sequence[ChildHook], wait_for: Callable[[Coroutine[Any, Any, Any]], Any], mouth: Mouth) -> None:
    """What the application wants done first. A failure is told: no task can be run here."""
    try:
        for hook in hooks:
            _run_hook(hook, wait_for)
    except BaseException as error:
        with suppress(*GONE):  # the supervisor is gone, and so will we be
            mouth.say(NotStarted(cut("".join(traceback.format_exception(error)))))
        raise


def _shut_down(hooks: Sequence[ChildHook], wait_for: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
    """The other way round, each of them whatever becomes of the others."""
    for hook in reversed(hooks):
        try:
            _run_hook(hook, wait_for)
        except BaseException:  # noqa: BLE001 - user code
            traceback.print_exc()


def _run_hook(hook: ChildHook, wait_for: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
    done = hook()
    if asyncio.iscoroutine(done):
        wait_for(done)


def die_with_parent(signum: int, parent_pid: int) -> None:
    """Get this signal when the parent dies; end now if it already has."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(EXIT_NOT_STARTED)


def disregard_stop_signals() -> None:
    """Only the supervisor acts on SIGTERM and SIGINT. A handler, not SIG_IGN: programs that a task starts would inherit
    an ignored signal and could not be terminated."""
    signal.signal(signal.SIGTERM, _nothing)
    signal.signal(signal.SIGINT, _nothing)


def leave_stop_signals_to_forks() -> None:
    """What a task forks, the processes of a multiprocessing.Pool for example, is stopped by these signals as anywhere.
    They are held back until it can hear them: one that is sent at once would be lost, and waited for without end."""
    before = threading.local()

    def hold_back() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def heed() -> None:
        for number, usual in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            if signal.getsignal(number) is _nothing:
                signal.signal(number, usual)
        let_go()

    os.register_at_fork(before=hold_back, after_in_parent=let_go, after_in_child=heed)


def write_lines_at_once() -> None:
    """What a task printed is out before anything can kill its process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _nothing(signum: int, frame: FrameType | None) -> None:
    pass


def _beat_from_a_thread(journal: Journal, slot: int, seconds: float, teller: Teller) -> None:
    """Silence of this thread means that a task holds the GIL, or that the process is stopped. It never means death."""
    journal.beat(slot)

    def beat_on() -> None:
        while True:
            teller.wait(seconds)
            journal.beat(slot)

    threading.Thread(target=beat_on, name="everbeat-beat", daemon=True).start()


class SyncChild:
    """Runs one task at a time in the main thread, where an interrupt can reach it."""

    def __init__(
        self,
        app: RunnableApp,
        intake: Intake,
        mouth: Mouth,
        journal: Journal,
        teller: Teller,
        plan: ChildPlan,
    ) -> None:
        self._tasks = app.tasks
        self._around = app.hooks.around
        self._intake = intake
        self._mouth = mouth
        self._journal = journal
        self._teller = teller
        self._slot = plan.slot
        self._once = plan.kind is ChildKind.OWN
        self._pid = os.getpid()
        self.progress = teller.progress
        self.heartbeat = teller.heartbeat
        self._interruptible: tuple[int, int] | None = None
        """(seq, fence) of the task whose code is running."""
        self._answered = 0
        """The number of the last interrupt that was raised."""
        self._runner: asyncio.Runner | None = None
        self._awaited: asyncio.Task[Any] | None = None
        self._in_coroutine = False
        self._asked = 0

    def serve(self) -> None:
        """Run tasks until the supervisor closes the channel; in a process of its own, one."""
        self._answered = self._journal.interrupts(self._slot)  # meant for who had this slot before
        signal.signal(signal.SIGUSR1, self._on_interrupt)
        try:
            self._mouth.say([])
            for job in self._intake.jobs():
                outcome = self._run(job)
                self._teller.finish((job.seq, job.fence))
                self._mouth.say([(job.entry, job.seq, job.fence, outcome)])
                if self._once:
                    return
        except GONE:
            return

    def _run(self, job: Job) -> Outcome:
        began_at = time.time_ns() // 1000
        self._journal.begin(job.entry, job.seq, job.fence)
        result = error = None
        task = self._tasks.get(job.name)
        current = CurrentTask(
            id=job.id, name=job.name, attempt=job.attempt, fence=job.fence, crash_count=job.crash_count,
            worker_id=self._journal.worker_id, seq=job.seq, line=self,
        )  # fmt: skip
        if task is None:
            error = unknown_task(job.name)
        else:
            call = Calling(task, current, self._around)
            try:
                try:
                    self._interruptible = job.seq, job.fence
                    self._raise_if_asked()
                    result = self._execute(task, call, current, job.args)
                finally:
                    self._interruptible = None  # an interrupt that arrives before this line still ends in `except`
            except BaseException as exception:  # noqa: BLE001 - user code
                self._interruptible = None
                error = error_of(
                    exception, call.stage, __file__, calling.__file__, secrets=partial(task.secrets_in, job.args)
                )
        if os.getpid() != self._pid:
            os._exit(0)  # the code forked, and this is not the process that the task was given to
        if error is not None:
            failure.say(error, current, is_sensitive=task is not None and task.sensitive)
        return Outcome(result=result, error=error, began_at=began_at, ended_at=time.time_ns() // 1000)

    def _execute(self, task: RunnableTask, call: Calling, current: CurrentTask, raw: bytes) -> bytes:
        context = copy_context()  # context variables that this task sets are not seen by the next
        context.run(CURRENT.set, current)
        return self._run_async(call, raw, context) if task.is_async else context.run(call.run, raw)

    def _run_async(self, call: Calling, raw: bytes, context: Context) -> bytes:
        self._asked, self._in_coroutine = 0, True
        try:
            return self._loop_runner().run(self._await(call, raw), context=context)
        finally:
            self._in_coroutine, self._awaited = False, None

    async def _await(self, call: Calling, raw: bytes) -> bytes:
        self._awaited = asyncio.current_task()
        if self._asked:
            raise interruption(self._asked)
        try:
            return await call.arun(raw)
        except asyncio.CancelledError as cancelled:
            if self._asked:
                raise interruption(self._asked) from cancelled
            raise

    def _loop_runner(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner()
            exit_on_return_after_fork(self._runner.get_loop())
        return self._runner

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop_runner().run(coroutine)

    def is_cancelled(self, run: Ownership) -> bool:
        request = self._journal.interrupt_request(self._slot)
        return (request.seq, request.fence) == run and request.kind == InterruptKind.CANCEL

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._interruptible is not None:
            self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self._journal.interrupts(self._slot) == self._answered:
            return
        request = self._journal.interrupt_request(self._slot)
        if (request.seq, request.fence) != self._interruptible:
            return
        self._answered = request.number
        if not self._in_coroutine:
            raise interruption(request.kind)
        self._asked = request.kind
        if self._awaited is not None:
            self._awaited.get_loop().call_soon_threadsafe(self._awaited.cancel)


def run_and_exit(plan: ChildPlan, load: Callable[[], RunnableApp]) -> NoReturn:
    """The whole life of a child. Leaves without unwinding: after a fork the frames below belong to the fork server."""
    status = EXIT_NOT_STARTED
    try:
        live(plan, load())
        status = 0
    finally:
        if status:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(status)


def main() -> NoReturn:
    plan = msgspec.json.decode(sys.argv[1], type=ChildPlan)
    die_with_parent(signal.SIGKILL, plan.server_pid)
    disregard_stop_signals()
    run_and_exit(plan, lambda: load_app(plan.target, plan.imports, database_url=plan.database_url))


if __name__ == "__main__":
    main()
