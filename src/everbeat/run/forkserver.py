"""The fork server: imports the application once and makes children from it. It never runs a task.

Its control channel is its life: when the supervisor closes it or dies, it kills the process group of every child and
then itself. PDEATHSIG is the second way to learn of that death; where this process can not act, the leash does.
Children are reaped here, so that pid and group can not be reused before the group is killed and the wait status is on
its way to the supervisor.

An import that leaves threads or sockets behind can not be forked safely. Then this process starts itself anew without
the application (nothing of it may live twice) and makes every child a new interpreter; `Loaded.fork_reason` says why.

Children that run a task with an exclusive key are guarded: when the deadline in shared memory is over they are ended
here, also while the supervisor is stopped (PROTOCOL 24).

Things that do not work: PDEATHSIG with SIGKILL while there are children (nobody is left to kill their groups), SIGCHLD
(a handler of the application's may take its place; a pidfd can not be taken).
"""

import gc
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import msgspec

from everbeat.run.child import (
    EXIT_NOT_STARTED,
    die_with_parent,
    disregard_stop_signals,
    run_and_exit,
    write_lines_at_once,
)
from everbeat.run.deadline import Deadline, boot_us
from everbeat.run.forkable import open_sockets, why_not_fork
from everbeat.run.loading import RunnableApp, load_app
from everbeat.run.unusable import AppUnusable
from everbeat.run.wire import (
    GONE,
    Born,
    Channel,
    ChildPlan,
    Exited,
    FromServer,
    Guard,
    Inbox,
    Loaded,
    ServerPlan,
    Spawn,
    ToServer,
    Unusable,
    adopt,
    encode,
    send,
)

_REAP_SECONDS = 2.0
_GUARD_SECONDS = 0.1
"""How often the deadline is looked at while a child is guarded: a sleep may outlast a suspended machine."""


@dataclass(slots=True)
class _Child:
    number: int
    pid: int
    pidfd: int
    wait: Callable[[], int]
    is_guarded: bool = False
    """It runs a task with an exclusive key."""
    is_overdue: bool = False


class ForkServer:
    def __init__(self, plan: ServerPlan, control: Channel, app: RunnableApp | None) -> None:
        self._plan = plan
        self._app = app
        self._control = control
        self._orders: Inbox[ToServer] = Inbox(control, msgspec.msgpack.Decoder(ToServer))
        self._deadline = Deadline(plan.deadline_fd)
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._pid = os.getpid()
        self._collects_garbage = gc.isenabled()

    def serve(self) -> NoReturn:
        """Obey the supervisor until it goes."""
        gc.collect()
        gc.freeze()  # what the import made is shared with children for as long as nobody writes to it
        gc.disable()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, self._on_sigterm)
        self._selector.register(self._control, selectors.EVENT_READ)
        die_with_parent(signal.SIGTERM, self._plan.supervisor_pid)
        while True:
            for key, _ in self._selector.select(_GUARD_SECONDS if self._is_guarding else None):
                if key.data is None:
                    self._obey()
                else:
                    self._reap(key.data)
            if self._is_guarding and boot_us() >= self._deadline.at_us:
                while self._obey():  # the end of a guarded task may have been said, and not yet been heard
                    continue
                self._end_guarded()

    @property
    def _is_guarding(self) -> bool:
        return any(child.is_guarded for child in self._children.values())

    def _end_guarded(self) -> None:
        """The supervisor has had no answer for too long: nobody may say that its exclusive tasks still run."""
        for child in self._children.values():
            if child.is_guarded:
                child.is_guarded, child.is_overdue = False, True
                _kill_group(child.pid)

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        """Stop signals are for the supervisor; this one only counts when it is the news of the supervisor's death."""
        if os.getpid() == self._pid and os.getppid() != self._plan.supervisor_pid:
            self._end()

    def _obey(self) -> bool:
        """Whether there was an order."""
        try:
            order = self._orders.take()
        except EOFError:
            self._end()
        if isinstance(order, Spawn):
            self._make(order)
        elif isinstance(order, Guard) and order.number in self._children:  # else its end is being told
            self._children[order.number].is_guarded = order.on
        return order is not None

    def _make(self, order: Spawn) -> None:
        fds, self._orders.fds = self._orders.fds, []
        try:
            child = self._start(order, *fds)
        except OSError as error:  # no memory or process to be had just now
            sys.stderr.write(f"everbeat: can not start a process: {error}\n")
            self._say(Exited(order.number, EXIT_NOT_STARTED))
            return
        finally:
            for fd in fds:
                os.close(fd)
        self._children[child.number] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        self._say(Born(child.number, child.pid), child.pidfd)

    def _start(
        self, order: Spawn, task_fd: int, ticket_fd: int, outcome_fd: int, lock_fd: int, journal_fd: int
    ) -> _Child:
        plan = ChildPlan(
            slot=order.slot,
            kind=order.kind,
            task_fd=task_fd,
            ticket_fd=ticket_fd,
            outcome_fd=outcome_fd,
            lock_fd=lock_fd,
            journal_fd=journal_fd,
            leash_fd=self._plan.leash_fd,
            server_pid=self._pid,
            target=self._plan.target,
            imports=self._plan.imports,
            database_url=self._plan.database_url,
            kit=order.kit,
        )
        pid, wait = self._fork(plan, self._app) if self._app is not None else _start_fresh(plan)
        return _Child(number=order.number, pid=pid, pidfd=os.pidfd_open(pid), wait=wait)

    def _fork(self, plan: ChildPlan, app: RunnableApp) -> tuple[int, Callable[[], int]]:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()  # or each child would write it again
        pid = os.fork()
        if pid == 0:
            self._forget_siblings()
            run_and_exit(plan, lambda: app)
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # both sides do it: the group must be there before either needs it
        return pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _forget_siblings(self) -> None:
        self._selector.close()
        self._control.close()
        for sibling in self._children.values():
            os.close(sibling.pidfd)
        if self._collects_garbage:
            gc.enable()

    def _reap(self, child: _Child) -> None:
        self._selector.unregister(child.pidfd)
        _kill_group(child.pid)
        del self._children[child.number]  # before it is reaped: the news of the supervisor's death may come in between
        status = child.wait()
        os.close(child.pidfd)
        self._say(Exited(child.number, status, child.is_overdue))

    def _say(self, message: FromServer, *fds: int) -> None:
        with suppress(*GONE):  # the supervisor is gone: the next turn ends this
            send(self._control, encode(message), fds, wait=True)

    def _end(self) -> NoReturn:
        """Take every process down that came from here. Once, although the death may be told twice."""
        for news in (signal.SIGTERM, signal.SIGINT):
            signal.signal(news, signal.SIG_IGN)
        for child in self._children.values():
            _kill_group(child.pid)
        with selectors.DefaultSelector() as dying:
            for child in self._children.values():
                dying.register(child.pidfd, selectors.EVENT_READ, child)
            while dying.get_map() and (dead := dying.select(_REAP_SECONDS)):
                for key, _ in dead:
                    dying.unregister(key.fd)
                    key.data.wait()
        os.killpg(0, signal.SIGKILL)  # its own group: programs that the import started, and itself
        os._exit(1)


def _start_fresh(plan: ChildPlan) -> tuple[int, Callable[[], int]]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "everbeat.run.child", msgspec.json.encode(plan).decode()],
        pass_fds=(plan.task_fd, plan.ticket_fd, plan.outcome_fd, plan.lock_fd, plan.journal_fd, plan.leash_fd),
        process_group=0,
    )
    return process.pid, process.wait


def _kill_group(pid: int) -> None:
    """Safe from pid reuse: the leader has not been reaped."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _loaded(app: RunnableApp, fork_reason: str | None) -> Loaded:
    facts = app.worker_facts()
    return Loaded(
        store_url=str(facts.get("store_url", "")),
        config_json=msgspec.json.encode(facts).decode(),
        sync_names=tuple(name for name, task in app.tasks.items() if not task.is_async),
        async_names=tuple(name for name, task in app.tasks.items() if task.is_async),
        fork_reason=fork_reason,
    )


def _tell(control: Channel, message: Loaded | Unusable) -> None:
    try:
        send(control, encode(message), wait=True)
    except GONE:  # the supervisor did not wait for us
        os._exit(EXIT_NOT_STARTED)


def main() -> NoReturn:
    plan = msgspec.json.decode(sys.argv[1], type=ServerPlan)
    control = adopt(plan.control_fd)
    for fd in (plan.leash_fd, plan.deadline_fd):
        os.set_inheritable(fd, False)
    die_with_parent(signal.SIGKILL, plan.supervisor_pid)  # as long as there are no children
    disregard_stop_signals()
    write_lines_at_once()
    if plan.fresh:
        ForkServer(plan, control, None).serve()
    sockets_before = open_sockets()
    try:
        app = load_app(plan.target, plan.imports, database_url=plan.database_url)
        loaded = _loaded(app, why_not_fork(sockets_before))
    except AppUnusable as error:
        _tell(control, Unusable(error.kind, error.message))
        os._exit(EXIT_NOT_STARTED)
    _tell(control, loaded)
    if loaded.fork_reason is None:
        ForkServer(plan, control, app).serve()
    for fd in (plan.control_fd, plan.leash_fd, plan.deadline_fd):
        os.set_inheritable(fd, True)
    argument = msgspec.json.encode(msgspec.structs.replace(plan, fresh=True)).decode()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "everbeat.run.forkserver", argument])


if __name__ == "__main__":
    main()
