"""The supervisor's side of its processes: the children that a fork server makes for it (nursery.py).

Owns their channels, pidfds and fates. Everything that happens to them comes out of `collect` as news, in an order that
can be relied on: outcomes that a child sent come before or with its death, and what it never took is read back and
named (PROTOCOL 19, 21). A child is dead when its pidfd says so; a closed channel is only a hint, because anything that
a task left behind may hold it open.

Single-threaded, and never blocks but in `stop`. Call `collect` when `fileno()` is readable and at least once a second.
"""

import os
import signal
import time
from collections.abc import Iterable, Sequence

import msgspec

from everbeat.model.task import Claim
from everbeat.run import adopted
from everbeat.run.deadline import Deadline
from everbeat.run.journal import Journal
from everbeat.run.lockfile import WorkerLock
from everbeat.run.news import AppFacts, AppFailed, AppReady, ChildReady, Died, Finished, News, Reported
from everbeat.run.nursery import Application, Nursery
from everbeat.run.offspring import Offspring
from everbeat.run.pidfds import Watch, has_exited, kill_group, send_signal, wait_for_exit
from everbeat.run.speech import Ear
from everbeat.run.wire import (
    ChildKind,
    FromChild,
    Interrupt,
    InterruptKind,
    Job,
    Kit,
    NotStarted,
    Progressed,
    Told,
    encode,
    send,
)

BEATS_ALLOWED = 3
_STATUS_PATIENCE = 2.0
"""How long a dead child waits for its status when the fork server is alive but says nothing (it may be stopped)."""
_STOP_SECONDS = 5.0
_REAP_SECONDS = 1.0
RELEASE_SECONDS = 5.0
"""How long a child that may go has for what its application wants done at the end."""


class Crew:
    def __init__(self, *, target: str, imports: Iterable[str], database_url: str | None = None) -> None:
        self._watch = Watch()
        application = Application(target=target, imports=tuple(imports), database_url=database_url)
        self.nursery = Nursery(application, self, self._watch)
        self._children: dict[int, Offspring] = {}
        """By slot."""
        self._released: list[Offspring] = []
        self._ended: list[Offspring] = []
        """Those whose status is not known yet."""
        self._news: list[News] = []
        self._stopped = False
        self._adopts = adopted.adopts()
        self._reaped_at = 0.0

    @property
    def facts(self) -> AppFacts | None:
        """What the newest fork server that came up says of the application."""
        return self.nursery.facts

    @property
    def deadline(self) -> Deadline:
        """Until when children may run a task with an exclusive key."""
        return self.nursery.deadline

    def equip(
        self,
        lock: WorkerLock,
        journal: Journal,
        *,
        beat_seconds: float,
        worker_id: str = "",
        log_level: str = "info",
        log_format: str = "text",
        async_slots: int | None = None,
    ) -> None:
        """What children made from now on lock, write and beat: those of one worker id; and how many tasks the async one
        may have at once, if that is limited. Needed before the first `spawn`, and again when the worker takes a new id.
        A child of the old id that could not be ended is not spoken of again: SIGKILL is on its way to it, and the old
        lock says how long it lives."""
        for child in list(self._children.values()):
            self.kill(child.slot)
            self._forget(child)
        self._news = [news for news in self._news if isinstance(news, AppReady | AppFailed)]
        self._journal, self._beat_seconds, self._async_slots = journal, beat_seconds, async_slots
        self.nursery.equip(Kit(beat_seconds, worker_id, log_level, log_format), lock.fd, journal.fd)

    def fileno(self) -> int:
        """An epoll fd, readable when `collect` has something to do."""
        return self._watch.epoll.fileno()

    def start(self) -> None:
        """Start the fork server. What becomes of it is told by `collect`: AppReady or AppFailed."""
        self.nursery.start()

    def spawn(self, slot: int, kind: ChildKind) -> None:
        """Have a child made for a free slot, as soon as there is a fork server that can. ChildReady or Died follows."""
        if slot in self._children:
            raise ValueError(f"slot {slot} has a child already")
        self._journal.beat(slot)
        child = Offspring(slot=slot, kind=kind, places=self._async_slots if kind is ChildKind.ASYNC else None)
        self._children[slot] = child
        self.nursery.ask_for(child)

    def send(self, slot: int, tasks: Sequence[tuple[int, Claim]]) -> bool:
        """Send tasks, each with its journal entry, to a child. False: it is not ready or its queue is full, and nothing
        was sent. True: the crew has them all; what found no place is sent when there is one, or read back."""
        child = self._children.get(slot)
        if child is None or not child.ready or child.doomed or (child.backlog and child.places is None):
            return False
        jobs = [
            Job(entry, claim.seq, claim.fence, claim.id, claim.name, claim.attempt, claim.crash_count, claim.args)
            for entry, claim in tasks
        ]
        is_exclusive = any(claim.exclusive_key is not None for _, claim in tasks)
        if is_exclusive is not child.is_guarded and not child.guard(on=is_exclusive):
            return False
        is_first = not child.backlog
        child.backlog += jobs
        child.expected += len(jobs)
        if child.send_backlog() or not is_first:
            return True
        child.backlog.clear()
        child.expected -= len(jobs)
        return False

    def take_back(self, slot: int) -> list[tuple[int, int]]:
        """Read back what a child has not taken: (seq, fence) of tasks that it will never see."""
        child = self._children.get(slot)
        return [] if child is None else child.read_back()

    def kill(self, slot: int) -> None:
        """SIGKILL to a child; the fork server kills its whole group before it reports the death. Died follows."""
        child = self._children.get(slot)
        if child is None:
            return
        if child.channels is None:
            self.bury(child, None)
        child.doomed = True
        send_signal(child.pidfd, signal.SIGKILL)

    def release(self, slot: int) -> None:
        """Let an idle child go: it does what its application wants done at the end, and exits. Died follows."""
        child = self._children.get(slot)
        if child is None or child.channels is None or not child.ready:
            self.kill(slot)
        elif not child.doomed:
            child.doomed, child.kill_at = True, time.monotonic() + RELEASE_SECONDS
            self._released.append(child)
            child.channels.tickets.end()

    def interrupt(self, slot: int, claim: Claim, kind: InterruptKind) -> bool:
        """Raise the exception for this kind in the task, if it is running. False: could not be asked for now."""
        child = self._children.get(slot)
        if child is None or child.channels is None or child.doomed:
            return False
        if child.kind is ChildKind.ASYNC:
            return send(child.channels.tasks, encode(Interrupt(claim.seq, claim.fence, kind)), wait=False)
        self._journal.request_interrupt(slot, claim.seq, claim.fence, kind)
        return send_signal(child.pidfd, signal.SIGUSR1)

    def responsive(self, slot: int) -> bool:
        """Whether a child's beats go on. One that is silent is busy in C code, or stopped; it is not dead."""
        child = self._children.get(slot)
        if child is None or not child.ready:
            return True
        silent_for = (time.monotonic_ns() - self._journal.beat_ns(slot)) / 1e9
        return silent_for < BEATS_ALLOWED * self._beat_seconds

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
            if self._ended or self._released or self.nursery.needs_care:
                self._see_to_it()
            if self._adopts:
                self._reap()
        news, self._news = self._news, []
        return news

    def stop(self) -> None:
        """Kill everything, wait for it to be gone, close. May be called again."""
        if self._stopped:
            return
        self._stopped = True
        give_up_at = time.monotonic() + _STOP_SECONDS
        for child in self._children.values():
            send_signal(child.pidfd, signal.SIGKILL)
        if not self.nursery.end(give_up_at):
            for child in self._children.values():
                kill_group(child.pid)
        for child in self._children.values():
            if child.pidfd >= 0:
                wait_for_exit(child.pidfd, give_up_at)
                os.close(child.pidfd)
            if child.channels is not None:
                child.channels.close()
        self._children.clear()
        self._watch.epoll.close()
        self.nursery.close()

    def _see_to_it(self) -> None:
        now = time.monotonic()
        self.nursery.care(now)
        for child in [child for child in self._released if now > child.kill_at]:
            self._released.remove(child)
            send_signal(child.pidfd, signal.SIGKILL)
        for child in [child for child in self._ended if child.ended_at and now - child.ended_at > _STATUS_PATIENCE]:
            self.bury(child, None)

    def _reap(self) -> None:
        now = time.monotonic()
        if now - self._reaped_at >= _REAP_SECONDS:
            self._reaped_at = now
            adopted.reap(self.nursery.server_pids)

    # -- what the nursery tells -------------------------------------------------------------------------------------

    def tell(self, news: News) -> None:
        self._news.append(news)

    def welcome(self, child: Offspring) -> None:
        assert child.channels is not None
        self._watch.add(child.channels.outcomes.fd, lambda: self._hear(child))
        self._watch.add(child.pidfd, lambda: self._note_exit(child))
        if child.doomed:
            send_signal(child.pidfd, signal.SIGKILL)

    def bury(self, child: Offspring, status: int | None) -> None:
        outcomes = self._listen(child, until_silent=True)
        unread = child.read_back()
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

    # -- what a child says ------------------------------------------------------------------------------------------

    def _hear(self, child: Offspring) -> None:
        outcomes = self._listen(child, until_silent=False)
        if child.backlog:
            child.send_backlog()
        if outcomes:
            self._news.append(Finished(child.slot, outcomes))

    def _listen(self, child: Offspring, *, until_silent: bool) -> list[Told]:
        """Outcomes that have arrived. Unless it is told otherwise it asks once: that is all of them, nearly always."""
        heard: list[Told] = []
        if child.channels is None:
            return heard
        ear = child.channels.outcomes
        try:
            while self._take_down(child, ear, heard) and until_silent:
                continue
        except EOFError:
            self._watch.drop(ear.fd)
        except msgspec.DecodeError:  # something in the child wrote to a channel that is not its own
            self._watch.drop(ear.fd)
            self.kill(child.slot)
        child.expected -= len(heard)
        if heard and child.is_guarded and child.expected <= 0:
            child.guard(on=False)
        return heard

    def _take_down(self, child: Offspring, ear: Ear[FromChild], heard: list[Told]) -> bool:
        """Whether something was said."""
        is_silent = True
        for told in ear.hear():
            is_silent = False
            if isinstance(told, Progressed):
                self._news.append(Reported(child.slot, told.reports))
            elif isinstance(told, NotStarted):
                self._news.append(AppFailed("raised", told.message))
            elif told:
                heard += told
            else:
                child.ready = True
                self._news.append(ChildReady(child.slot, child.pid))
        return not is_silent

    def _note_exit(self, child: Offspring) -> None:
        if not has_exited(child.pidfd):
            return
        self._watch.drop(child.pidfd)
        if child.server is not self.nursery.server:
            self.bury(child, None)  # who could tell is gone
        else:
            child.ended_at = time.monotonic()
            self._ended.append(child)

    def _forget(self, child: Offspring) -> None:
        self.nursery.forget(child)
        if child.channels is not None:
            self._watch.drop(child.channels.outcomes.fd)
            child.channels.close()
        if child.pidfd >= 0:
            self._watch.drop(child.pidfd)
            os.close(child.pidfd)
            child.pidfd = -1
        for passing in (self._ended, self._released):
            if child in passing:
                passing.remove(child)
        self._children.pop(child.slot, None)
