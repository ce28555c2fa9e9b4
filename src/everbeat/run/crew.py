"""The supervisor's side of its processes: one fork server and the children it makes.

Owns their channels, pidfds and fates. Everything that happens to them comes out of `collect` as news, in an order that
can be relied on: outcomes that a child sent come before or with its death, and what it never took is read back and
named (PROTOCOL 19, 21). A child is dead when its pidfd says so; a closed channel is only a hint, because anything that
a task left behind may hold it open.

The fork server may die, too: its children die with it, the crew kills their groups, reports each with status None, and
starts another, at once the first time, then with growing pauses. Nothing here raises because an application fails.

Single-threaded, and never blocks but in `stop`. Call `collect` when `fileno()` is readable and at least once a second.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from everbeat.model.task import Claim
from everbeat.run.deadline import Deadline
from everbeat.run.journal import Journal
from everbeat.run.leash import Leash
from everbeat.run.lockfile import WorkerLock
from everbeat.run.wire import (
    GONE,
    Born,
    Channel,
    ChildKind,
    Exited,
    FromChild,
    FromServer,
    Guard,
    Inbox,
    Interrupt,
    InterruptKind,
    Job,
    Kit,
    Loaded,
    NotStarted,
    Progressed,
    Run,
    ServerPlan,
    Spawn,
    ToChild,
    Told,
    Unusable,
    channel,
    encode,
    new_buffer,
    send,
)

__all__ = [
    "AppFacts", "AppFailed", "AppReady", "ChildKind", "ChildReady", "Crew", "Died", "Finished", "InterruptKind", "News",
    "Reported",
]  # fmt: skip

BEATS_ALLOWED = 3
_STATUS_PATIENCE = 2.0
"""How long a dead child waits for its status when the fork server is alive but says nothing (it may be stopped)."""
_STEADY = 10.0
"""A fork server that served for this long is restarted without a pause."""
_LONGEST_PAUSE = 30.0
_STOP_SECONDS = 5.0
RELEASE_SECONDS = 5.0
"""How long a child that may go has for what its application wants done at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFacts:
    store_url: str
    config_json: str
    """What the application says about itself, as JSON."""
    sync_names: tuple[str, ...]
    async_names: tuple[str, ...]
    fork_reason: str | None
    """Why children are new interpreters; None if they are forked."""


@dataclass(frozen=True, slots=True)
class AppReady:
    facts: AppFacts


@dataclass(frozen=True, slots=True)
class AppFailed:
    """The fork server is of no use; another try follows. "missing": no such module or attribute; "raised": the import
    failed, or what a child was to do first, with its traceback; "died": the process ended, while importing or later."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class ChildReady:
    slot: int
    pid: int


@dataclass(frozen=True, slots=True)
class Finished:
    slot: int
    outcomes: list[Told]
    """Entry, seq, fence and outcome of each."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What running tasks say of themselves: seq, fence, and progress as JSON; None is a heartbeat."""

    slot: int
    reports: list[tuple[int, int, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    slot: int
    pid: int
    """0 if it never came to life."""
    status: int | None
    """Exit code, or minus the signal; None when the fork server was gone and nobody could tell."""
    was_ready: bool
    outcomes: list[Told]
    """Sent before it died, not yet collected. They count."""
    unread: list[tuple[int, int]]
    """(seq, fence) of what it never took: not begun."""
    seconds_alive: float
    overdue: bool = False
    """The fork server has ended it: the lease of its exclusive task was over."""


News = AppReady | AppFailed | ChildReady | Finished | Reported | Died


@dataclass(slots=True, eq=False)
class _Child:
    slot: int
    kind: ChildKind
    number: int = 0
    channels: "_Channels | None" = None
    """None until the fork server was told to make it."""
    server: "_Server | None" = None
    """Who makes it, reaps it, and says how it ended."""
    pid: int = 0
    pidfd: int = -1
    born_at: float = 0.0
    ended_at: float | None = None
    ready: bool = False
    doomed: bool = False
    is_guarded: bool = False
    """It may run a task with an exclusive key, and is ended when the deadline is over."""
    is_overdue: bool = False
    kill_at: float = 0.0
    """It was told to go by itself, and is killed if it has not by then."""
    expected: int = 0
    """Outcomes that may still come."""
    backlog: list[list[Job]] = field(default_factory=list)
    """Messages that found no room in the queue. Read back like those that did."""


@dataclass(slots=True, eq=False)
class _Channels:
    tasks: Channel
    unread: Inbox[ToChild]
    """The child's own reading end of `tasks`."""
    outcomes: Inbox[FromChild]

    def close(self) -> None:
        for end in (self.tasks, self.unread.end, self.outcomes.end):
            end.close()


@dataclass(slots=True, eq=False)
class _Server:
    process: "subprocess.Popen[bytes]"
    pidfd: int
    inbox: Inbox[FromServer]
    started_at: float
    loaded: bool = False
    complained: bool = False


@dataclass(slots=True)
class _Watch:
    """One epoll, and what to do about each fd in it."""

    epoll: select.epoll = field(default_factory=select.epoll)
    acts: dict[int, Callable[[], None]] = field(default_factory=dict)

    def add(self, fd: int, act: Callable[[], None]) -> None:
        self.acts[fd] = act
        self.epoll.register(fd, select.EPOLLIN)

    def drop(self, fd: int) -> None:
        if self.acts.pop(fd, None) is not None:
            self.epoll.unregister(fd)


class Crew:
    def __init__(self, *, target: str, imports: Iterable[str], database_url: str | None = None) -> None:
        self._target = target
        self._imports = tuple(imports)
        self._database_url = database_url
        self._watch = _Watch()
        self._leash = Leash()
        self.deadline = Deadline.create()
        """Until when children may run a task with an exclusive key."""
        self._buffer = new_buffer()
        self._to_child = msgspec.msgpack.Decoder(ToChild)
        self._from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)
        self._from_server = msgspec.msgpack.Decoder(FromServer)
        self._server: _Server | None = None
        self._restart_at: float | None = None
        self._failures = 0
        self._numbers = 0
        self._children: dict[int, _Child] = {}
        self._by_number: dict[int, _Child] = {}
        self._unordered: list[_Child] = []
        self._released: list[_Child] = []
        self._ended: list[_Child] = []
        self._news: list[News] = []
        self._stopped = False
        self.facts: AppFacts | None = None
        """What the newest fork server that came up says of the application."""

    def equip(
        self,
        lock: WorkerLock,
        journal: Journal,
        *,
        beat_seconds: float,
        worker_id: str = "",
        log_level: str = "info",
        log_format: str = "text",
    ) -> None:
        """What children made from now on lock, write and beat: those of one worker id. Needed before the first `spawn`,
        and again when the worker takes a new id. A child of the old id that could not be ended is not spoken of again:
        SIGKILL is on its way to it, and the old lock says how long it lives."""
        for child in list(self._children.values()):
            self.kill(child.slot)
            self._forget(child)
        self._unordered.clear()
        self._news = [news for news in self._news if isinstance(news, AppReady | AppFailed)]
        self._journal = journal
        self._kit = Kit(str(lock.path), str(journal.path), beat_seconds, worker_id, log_level, log_format)

    def fileno(self) -> int:
        """An epoll fd, readable when `collect` has something to do."""
        return self._watch.epoll.fileno()

    def start(self) -> None:
        """Start the fork server. What becomes of it is told by `collect`: AppReady or AppFailed."""
        ours, theirs = channel()
        plan = ServerPlan(
            target=self._target,
            imports=self._imports,
            database_url=self._database_url,
            control_fd=theirs.fileno(),
            leash_fd=self._leash.fd,
            deadline_fd=self.deadline.fd,
            supervisor_pid=os.getpid(),
        )
        self._restart_at = None
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "everbeat.run.forkserver", msgspec.json.encode(plan).decode()],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._leash.fd, self.deadline.fd),
                start_new_session=True,  # keys pressed in a terminal reach the supervisor only
            )
        except OSError as error:
            ours.close()
            self._news.append(AppFailed("died", f"can not start a fork server: {error}"))
            self._try_again_later()
            return
        finally:
            theirs.close()
        server = _Server(
            process=process,
            pidfd=os.pidfd_open(process.pid),
            inbox=Inbox(ours, self._from_server, self._buffer),
            started_at=time.monotonic(),
        )
        self._server = server
        self._watch.add(ours.fileno(), lambda: self._hear_server(server))
        self._watch.add(server.pidfd, lambda: self._hear_server(server))

    def spawn(self, slot: int, kind: ChildKind) -> None:
        """Have a child made for a free slot, as soon as there is a fork server that can. ChildReady or Died follows."""
        if slot in self._children:
            raise ValueError(f"slot {slot} has a child already")
        self._journal.beat(slot)
        child = _Child(slot=slot, kind=kind)
        self._children[slot] = child
        self._unordered.append(child)
        self._give_orders()

    def send(self, slot: int, tasks: Sequence[tuple[int, Claim]]) -> bool:
        """Send tasks, each with its journal entry, to a child. False: it is not ready or its queue is full, and nothing
        was sent. True: the crew has them all; what found no room is sent when there is some, or read back."""
        child = self._children.get(slot)
        if child is None or not child.ready or child.doomed or child.backlog:
            return False
        jobs = [
            Job(entry, claim.seq, claim.fence, claim.id, claim.name, claim.attempt, claim.crash_count, claim.args)
            for entry, claim in tasks
        ]
        is_exclusive = any(claim.exclusive_key is not None for _, claim in tasks)
        if is_exclusive is not child.is_guarded and not self._guard(child, on=is_exclusive):
            return False
        batches = [jobs] if child.kind is ChildKind.ASYNC else [[job] for job in jobs]
        sent = self._send_some(child, batches)
        if sent == 0:
            return False
        child.backlog = batches[sent:]
        child.expected += len(jobs)
        return True

    def take_back(self, slot: int) -> list[tuple[int, int]]:
        """Read back what a child has not taken: (seq, fence) of tasks that it will never see."""
        child = self._children.get(slot)
        return [] if child is None else self._read_back(child)

    def kill(self, slot: int) -> None:
        """SIGKILL to a child; the fork server kills its whole group before it reports the death. Died follows."""
        child = self._children.get(slot)
        if child is None:
            return
        if child.channels is None:
            self._unordered.remove(child)
            self._bury(child, None)
        child.doomed = True
        _signal(child.pidfd, signal.SIGKILL)

    def release(self, slot: int) -> None:
        """Let an idle child go: it does what its application wants done at the end, and exits. Died follows."""
        child = self._children.get(slot)
        if child is None or child.channels is None or not child.ready:
            self.kill(slot)
        elif not child.doomed:
            child.doomed, child.kill_at = True, time.monotonic() + RELEASE_SECONDS
            self._released.append(child)
            child.channels.tasks.close()

    def interrupt(self, slot: int, claim: Claim, kind: InterruptKind) -> bool:
        """Raise the exception for this kind in the task, if it is running. False: could not be asked for now."""
        child = self._children.get(slot)
        if child is None or child.channels is None or child.doomed:
            return False
        if child.kind is ChildKind.ASYNC:
            return send(child.channels.tasks, encode(Interrupt(claim.seq, claim.fence, kind)), wait=False)
        self._journal.request_interrupt(slot, claim.seq, claim.fence, kind)
        return _signal(child.pidfd, signal.SIGUSR1)

    def responsive(self, slot: int) -> bool:
        """Whether a child's beats go on. One that is silent is busy in C code, or stopped; it is not dead."""
        child = self._children.get(slot)
        if child is None or not child.ready:
            return True
        silent_for = (time.monotonic_ns() - self._journal.beat_ns(slot)) / 1e9
        return silent_for < BEATS_ALLOWED * self._kit.beat_seconds

    def wait(self) -> bool:
        """Whether something happens within a millisecond."""
        return bool(self._watch.epoll.poll(0.001))

    def collect(self) -> list[News]:
        """Everything that has happened since the last call. Never blocks."""
        if not self._stopped:
            for fd, _ in self._watch.epoll.poll(0):
                act = self._watch.acts.get(fd)
                if act is not None:
                    act()
            if self._unordered or self._ended or self._released or self._restart_at is not None:
                self._see_to_it()
        news, self._news = self._news, []
        return news

    def stop(self) -> None:
        """Kill everything, wait for it to be gone, close. May be called again."""
        if self._stopped:
            return
        self._stopped = True
        deadline = time.monotonic() + _STOP_SECONDS
        for child in self._children.values():
            _signal(child.pidfd, signal.SIGKILL)
        if self._server is not None:
            self._server.inbox.end.close()  # tells it to kill all groups and itself
            if not _wait_for_exit(self._server.pidfd, deadline):
                self._server.process.kill()
                for child in self._children.values():
                    _kill_group(child.pid)
            self._server.process.wait()
            os.close(self._server.pidfd)
            self._server = None
        for child in self._children.values():
            if child.pidfd >= 0:
                _wait_for_exit(child.pidfd, deadline)
                os.close(child.pidfd)
            if child.channels is not None:
                child.channels.close()
        self._children.clear()
        self._by_number.clear()
        self._watch.epoll.close()
        self._leash.close()
        self.deadline.close()

    # The fork server.

    def _hear_server(self, server: _Server) -> None:
        if server is not self._server:
            return
        gone = _has_exited(server.pidfd)  # asked first: what it said before it died is heard
        try:
            while (message := server.inbox.take()) is not None:
                self._heed(server, message)
        except (EOFError, msgspec.DecodeError):
            gone = True
        if gone:
            self._lose(server)

    def _heed(self, server: _Server, message: FromServer) -> None:
        match message:
            case Loaded():
                server.loaded = True
                self.facts = AppFacts(
                    store_url=message.store_url,
                    config_json=message.config_json,
                    sync_names=message.sync_names,
                    async_names=message.async_names,
                    fork_reason=message.fork_reason,
                )
                self._news.append(AppReady(self.facts))
                self._give_orders()
            case Unusable():
                server.complained = True
                self._news.append(AppFailed(message.kind, message.message))
            case Born():
                (pidfd,), server.inbox.fds = server.inbox.fds, []
                self._welcome(message, pidfd)
            case Exited():
                child = self._by_number.get(message.number)
                if child is not None:
                    child.is_overdue = message.overdue
                    self._bury(child, message.status)

    def _lose(self, server: _Server) -> None:
        """The fork server is gone, or of no use any more: end it and what came from it, and plan the next."""
        self._watch.drop(server.inbox.end.fileno())
        self._watch.drop(server.pidfd)
        server.inbox.end.close()
        _signal(server.pidfd, signal.SIGKILL)
        _kill_group(server.process.pid)
        status = server.process.wait()
        os.close(server.pidfd)
        self._server = None
        for child in list(self._by_number.values()):
            if child.pid:
                # They die by PDEATHSIG, and what they started by this. Nobody holds their pids any more: in theory an
                # empty group could be somebody else's by now, but while it has members its number is its own.
                _kill_group(child.pid)
                if child.ended_at is not None:
                    self._bury(child, None)
            else:
                self._withdraw(child)
        if not server.complained:
            how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
            self._news.append(AppFailed("died", f"the fork server (pid {server.process.pid}) ended: {how}"))
        if server.loaded and time.monotonic() - server.started_at > _STEADY:
            self._failures = 0
        self._try_again_later()

    def _withdraw(self, child: _Child) -> None:
        """A child that was asked for and never announced is asked for again, with fresh channels."""
        assert child.channels is not None
        child.channels.close()
        child.channels = None
        del self._by_number[child.number]
        if child.doomed:
            self._bury(child, None)
        else:
            self._unordered.append(child)

    def _try_again_later(self) -> None:
        pause = min(_LONGEST_PAUSE, 0.25 * 2**self._failures) if self._failures else 0.0
        self._failures += 1
        self._restart_at = time.monotonic() + pause

    def _see_to_it(self) -> None:
        now = time.monotonic()
        if self._restart_at is not None and now >= self._restart_at:
            self.start()
        self._give_orders()
        for child in [child for child in self._released if now > child.kill_at]:
            self._released.remove(child)
            _signal(child.pidfd, signal.SIGKILL)
        for child in [child for child in self._ended if child.ended_at and now - child.ended_at > _STATUS_PATIENCE]:
            self._bury(child, None)

    def _give_orders(self) -> None:
        if self._server is None or not self._server.loaded:
            return
        while self._unordered and self._order(self._server, self._unordered[0]):
            del self._unordered[0]

    def _order(self, server: _Server, child: _Child) -> bool:
        tasks, unread = channel()
        outcomes, theirs = channel()
        self._numbers += 1
        order = encode(Spawn(self._numbers, child.slot, child.kind, self._kit))
        with theirs:
            try:
                sent = send(server.inbox.end, order, (unread.fileno(), theirs.fileno()), wait=False)
            except GONE:
                sent = False  # its death is on its way here
        channels = _Channels(
            tasks=tasks,
            unread=Inbox(unread, self._to_child, self._buffer),
            outcomes=Inbox(outcomes, self._from_child, self._buffer),
        )
        if not sent:
            channels.close()
            return False
        child.number, child.channels, child.server = self._numbers, channels, server
        self._by_number[child.number] = child
        return True

    # Children.

    def _welcome(self, born: Born, pidfd: int) -> None:
        child = self._by_number.get(born.number)
        if child is None or child.channels is None:
            os.close(pidfd)
            return
        child.pid, child.pidfd, child.born_at = born.pid, pidfd, time.monotonic()
        self._watch.add(child.channels.outcomes.end.fileno(), lambda: self._hear(child))
        self._watch.add(pidfd, lambda: self._note_exit(child))
        if child.doomed:
            _signal(pidfd, signal.SIGKILL)

    def _hear(self, child: _Child) -> None:
        outcomes = self._listen(child, until_silent=False)
        if child.backlog:
            del child.backlog[: self._send_some(child, child.backlog)]
        if outcomes:
            self._news.append(Finished(child.slot, outcomes))

    def _listen(self, child: _Child, *, until_silent: bool) -> list[Told]:
        """Outcomes that have arrived. Unless told otherwise, stops when no more are expected: one read for each."""
        heard: list[Told] = []
        if child.channels is None:
            return heard
        inbox = child.channels.outcomes
        try:
            while (told := inbox.take()) is not None:
                if isinstance(told, Progressed):
                    self._news.append(Reported(child.slot, told.reports))
                    continue
                if isinstance(told, NotStarted):
                    self._news.append(AppFailed("raised", told.message))
                    continue
                if not told:
                    child.ready = True
                    self._news.append(ChildReady(child.slot, child.pid))
                heard += told
                child.expected -= len(told)
                if child.is_guarded and child.expected <= 0:
                    self._guard(child, on=False)
                if child.expected <= 0 and not until_silent:
                    break
        except EOFError:
            self._watch.drop(inbox.end.fileno())
        except msgspec.DecodeError:  # something in the child wrote to a channel that is not its own
            self._watch.drop(inbox.end.fileno())
            self.kill(child.slot)
        return heard

    def _guard(self, child: _Child, *, on: bool) -> bool:
        """Have the fork server end it when the deadline is over, or not any more. False: it could not be told."""
        try:
            told = child.server is not None and send(
                child.server.inbox.end, encode(Guard(child.number, on)), wait=False
            )
        except (*GONE, OSError):  # its death is on its way here, or was heard already
            told = False
        child.is_guarded = on if told else child.is_guarded
        return told

    def _send_some(self, child: _Child, batches: list[list[Job]]) -> int:
        """How many of these messages found room."""
        if child.channels is None:
            return 0
        for sent, batch in enumerate(batches):
            if not send(child.channels.tasks, encode(Run(batch)), wait=False):
                return sent
        return len(batches)

    def _note_exit(self, child: _Child) -> None:
        if not _has_exited(child.pidfd):
            return
        self._watch.drop(child.pidfd)
        if child.server is not self._server:
            self._bury(child, None)  # who could tell is gone
        else:
            child.ended_at = time.monotonic()
            self._ended.append(child)

    def _read_back(self, child: _Child) -> list[tuple[int, int]]:
        unread: list[tuple[int, int]] = []
        interrupts: list[Interrupt] = []
        if child.channels is None:
            return unread
        with suppress(EOFError):
            while (message := child.channels.unread.take()) is not None:
                if isinstance(message, Run):
                    unread += [(job.seq, job.fence) for job in message.jobs]
                else:
                    interrupts.append(message)
        unread += [(job.seq, job.fence) for batch in child.backlog for job in batch]
        child.backlog = []
        for interrupt in () if child.doomed else interrupts:  # not meant to be taken back
            send(child.channels.tasks, encode(interrupt), wait=False)
        child.expected -= len(unread)
        return unread

    def _bury(self, child: _Child, status: int | None) -> None:
        outcomes = self._listen(child, until_silent=True)
        unread = self._read_back(child)
        seconds_alive = (child.ended_at or time.monotonic()) - child.born_at if child.pidfd >= 0 else 0.0
        self._forget(child)
        self._news.append(
            Died(
                slot=child.slot,
                pid=child.pid,
                status=status,
                was_ready=child.ready,
                outcomes=outcomes,
                unread=unread,
                seconds_alive=seconds_alive,
                overdue=child.is_overdue,
            )
        )

    def _forget(self, child: _Child) -> None:
        if child.channels is not None:
            self._watch.drop(child.channels.outcomes.end.fileno())
            child.channels.close()
            self._by_number.pop(child.number, None)
        if child.pidfd >= 0:
            self._watch.drop(child.pidfd)
            os.close(child.pidfd)
            child.pidfd = -1
        for passing in (self._ended, self._released):
            if child in passing:
                passing.remove(child)
        self._children.pop(child.slot, None)


def _signal(pidfd: int, signum: signal.Signals) -> bool:
    try:
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, signum)
            return True
    except ProcessLookupError:
        pass
    return False


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if pid:
            os.killpg(pid, signal.SIGKILL)


def _has_exited(pidfd: int) -> bool:
    return _wait_for_exit(pidfd, 0.0)


def _wait_for_exit(pidfd: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
