"""Keeps a fork server at work, and has it make children.

A fork server may die: its children die with it, their groups are killed, each is reported with status None, and
another is started, at once the first time, then with growing pauses. What was asked for and never announced is asked
for again. Nothing here raises because an application fails.
"""

import os
import time
from dataclasses import dataclass
from typing import Protocol

import msgspec

from everbeat.run.deadline import Deadline
from everbeat.run.leash import Leash
from everbeat.run.news import AppFacts, AppFailed, AppReady, News
from everbeat.run.offspring import Channels, Offspring
from everbeat.run.pidfds import Watch, has_exited, kill_group, wait_for_exit
from everbeat.run.server import Server
from everbeat.run.speech import Ear, speech
from everbeat.run.tickets import Tickets
from everbeat.run.wire import (
    Born,
    Exited,
    FromChild,
    FromServer,
    Inbox,
    Kit,
    Loaded,
    Spawn,
    Unusable,
    channel,
    new_buffer,
)

_STEADY = 10.0
"""A fork server that served for this long is restarted without a pause."""
_LONGEST_PAUSE = 30.0


class Family(Protocol):
    """Who is told."""

    def tell(self, news: News) -> None: ...

    def welcome(self, child: Offspring) -> None:
        """It has a pid and a pidfd now."""

    def bury(self, child: Offspring, status: int | None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """What a fork server imports."""

    target: str
    imports: tuple[str, ...]
    database_url: str | None = None


class Nursery:
    def __init__(self, application: Application, family: Family, watch: Watch) -> None:
        self._application = application
        self._family = family
        self._watch = watch
        self._leash = Leash()
        self.deadline = Deadline.create()
        """Until when children may run a task with an exclusive key."""
        self._buffer = new_buffer()
        self._from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)
        self._kit: Kit | None = None
        self._files: tuple[int, int] | None = None
        self.server: Server | None = None
        self.facts: AppFacts | None = None
        """What the newest fork server that came up says of the application."""
        self._restart_at: float | None = None
        self._failures = 0
        self._numbers = 0
        self._by_number: dict[int, Offspring] = {}
        """Children that were asked for."""
        self._unordered: list[Offspring] = []
        """Those that are to be asked for."""

    # -- what the crew wants ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the fork server. What becomes of it is told: AppReady or AppFailed."""
        self._restart_at = None
        application = self._application
        try:
            server = Server.start(
                target=application.target,
                imports=application.imports,
                database_url=application.database_url,
                leash_fd=self._leash.fd,
                deadline_fd=self.deadline.fd,
                buffer=self._buffer,
            )
        except OSError as error:
            self._family.tell(AppFailed("died", f"can not start a fork server: {error}"))
            self._try_again_later()
            return
        self.server = server
        self._watch.add(server.inbox.end.fileno(), lambda: self.hear(server))
        self._watch.add(server.pidfd, lambda: self.hear(server))

    def equip(self, kit: Kit, lock_fd: int, journal_fd: int) -> None:
        """What children made from now on are given: open, because the names may be gone by then."""
        self._kit, self._files = kit, (lock_fd, journal_fd)

    def ask_for(self, child: Offspring) -> None:
        """As soon as there is a fork server that can make it."""
        self._unordered.append(child)
        self._give_orders()

    def forget(self, child: Offspring) -> None:
        """Nobody waits for it any more."""
        if child.channels is None:
            if child in self._unordered:
                self._unordered.remove(child)
        else:
            self._by_number.pop(child.number, None)

    @property
    def server_pids(self) -> list[int]:
        """Processes whose status is waited for here."""
        return [] if self.server is None else [self.server.process.pid]

    @property
    def needs_care(self) -> bool:
        return bool(self._unordered) or self._restart_at is not None

    def care(self, now: float) -> None:
        """What is to be done at its time."""
        if self._restart_at is not None and now >= self._restart_at:
            self.start()
        self._give_orders()

    def end(self, give_up_at: float) -> bool:
        """Have it kill all groups and itself. False: it did not within the time, and was killed."""
        server, self.server = self.server, None
        if server is None:
            return True
        server.inbox.end.close()  # tells it to
        is_in_time = wait_for_exit(server.pidfd, give_up_at)
        if not is_in_time:
            server.process.kill()
        server.process.wait()
        os.close(server.pidfd)
        return is_in_time

    def close(self) -> None:
        self._leash.close()
        self.deadline.close()

    # -- what the fork server says ----------------------------------------------------------------------------------

    def hear(self, server: Server) -> None:
        if server is not self.server:
            return
        gone = has_exited(server.pidfd)  # asked first: what it said before it died is heard
        try:
            while (message := server.inbox.take()) is not None:
                self._heed(server, message)
        except (EOFError, msgspec.DecodeError):
            gone = True
        if gone:
            self._lose(server)

    def _heed(self, server: Server, message: FromServer) -> None:
        match message:
            case Loaded():
                server.loaded = True
                self.facts = _facts(message)
                self._family.tell(AppReady(self.facts))
                self._give_orders()
            case Unusable():
                server.complained = True
                self._family.tell(AppFailed(message.kind, message.message))
            case Born():
                (pidfd,), server.inbox.fds = server.inbox.fds, []
                self._welcome(message, pidfd)
            case Exited():
                child = self._by_number.get(message.number)
                if child is not None:
                    child.is_overdue = message.overdue
                    self._family.bury(child, message.status)

    def _welcome(self, born: Born, pidfd: int) -> None:
        child = self._by_number.get(born.number)
        if child is None or child.channels is None:
            os.close(pidfd)
            return
        child.pid, child.pidfd, child.born_at = born.pid, pidfd, time.monotonic()
        self._family.welcome(child)

    # -- its end ----------------------------------------------------------------------------------------------------

    def _lose(self, server: Server) -> None:
        """The fork server is gone, or of no use any more: end it and what came from it, and plan the next."""
        self._watch.drop(server.inbox.end.fileno())
        self._watch.drop(server.pidfd)
        status = server.end()
        self.server = None
        for child in list(self._by_number.values()):
            if child.pid:
                # They die by PDEATHSIG, and what they started by this. Nobody holds their pids any more: in theory an
                # empty group could be somebody else's by now, but while it has members its number is its own.
                kill_group(child.pid)
                if child.ended_at is not None:
                    self._family.bury(child, None)
            else:
                self._withdraw(child)
        if not server.complained:
            how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
            self._family.tell(AppFailed("died", f"the fork server (pid {server.process.pid}) ended: {how}"))
        if server.loaded and time.monotonic() - server.started_at > _STEADY:
            self._failures = 0
        self._try_again_later()

    def _withdraw(self, child: Offspring) -> None:
        """A child that was asked for and never announced is asked for again, with fresh channels."""
        assert child.channels is not None
        child.channels.close()
        child.channels = None
        del self._by_number[child.number]
        if child.doomed:
            self._family.bury(child, None)
        else:
            self._unordered.append(child)

    def _try_again_later(self) -> None:
        pause = min(_LONGEST_PAUSE, 0.25 * 2**self._failures) if self._failures else 0.0
        self._failures += 1
        self._restart_at = time.monotonic() + pause

    # -- orders -----------------------------------------------------------------------------------------------------

    def _give_orders(self) -> None:
        if self.server is None or not self.server.loaded:
            return
        while self._unordered and self._order(self.server, self._unordered[0]):
            del self._unordered[0]

    def _order(self, server: Server, child: Offspring) -> bool:
        assert self._kit is not None
        assert self._files is not None
        tasks, theirs = channel()
        ear, mouth = speech()
        beside = Inbox(tasks, self._from_child, self._buffer)
        channels = Channels(tasks, theirs, Tickets(), Ear(ear, self._from_child, beside))
        self._numbers += 1
        spawn = Spawn(self._numbers, child.slot, child.kind, self._kit)
        sent = server.tell(spawn, theirs.fileno(), channels.tickets.fd, mouth, *self._files)
        os.close(mouth)
        if not sent:
            channels.close()
            return False
        child.number, child.channels, child.server = self._numbers, channels, server
        self._by_number[child.number] = child
        return True


def _facts(loaded: Loaded) -> AppFacts:
    return AppFacts(
        store_url=loaded.store_url,
        config_json=loaded.config_json,
        sync_names=loaded.sync_names,
        async_names=loaded.async_names,
        fork_reason=loaded.fork_reason,
    )
