"""Brings events to the subscribers of the application: at least once, after the commit that made them true.

The supervisor runs no user code, so subscribers have a process of their own. It is started for the first event and
started again when it dies. Two threads share the work: the loop of this service reads and writes the store, the main
thread, to which all processes belong, sends events and hears what became of them. Nothing here can hold up a task.

An event whose process dies under it, or that takes longer than `LIMIT_US`, has failed like one whose function raised.
The store counts failures and gives up (PROTOCOL 33); what was taken and not tried is given back at the end.
"""

import os
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from everbeat.clock import Clock
from everbeat.model.event import EventInfo
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, Outcome
from everbeat.report.log import subscriber_failed
from everbeat.run.hands import Hands
from everbeat.run.news import ChildReady, Died, Finished, News
from everbeat.run.subscriber import as_bytes
from everbeat.run.wire import ChildKind
from everbeat.run.words import how_it_died
from everbeat.store.interface import Store

LOOK_SECONDS = 0.25
BUSY_SECONDS = 0.05
BATCH = 50
DEPTH = 5
"""So many wait in the process itself, so that it need not wait for us."""
LEASE_US = 20_000_000
RENEW_US = 5_000_000
SUBSCRIBE_US = 3_600_000_000
LIMIT_US = 30_000_000
RESTART_US = (0, 1_000_000, 5_000_000, 30_000_000)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended:
    event_id: int
    failure: str | None


class Messenger:
    name = "messenger"

    def __init__(
        self, *, application: str, names: Collection[str], worker_id: str, store: Store, crew: Hands, slot: int,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._application = application
        self._names = names
        self._worker_id = worker_id
        self._store = store
        self._crew = crew
        self._slot = slot
        self._clock = clock
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._taken: SimpleQueue[EventInfo] = SimpleQueue()
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        # The loop's.
        self._under_way: dict[int, int] = {}
        """Events that were taken, and until when nobody else is given them, roughly."""
        self._subscribed_at: int | None = None
        # The main thread's.
        self._waiting: deque[EventInfo] = deque()
        self._sent: dict[int, EventInfo] = {}
        self._head_since = 0
        self._is_started = False
        self._is_over = False
        self._is_ready = False
        self._is_late = False
        self._short_lives = 0
        self._restart_at = 0

    # -- the loop ---------------------------------------------------------------------------------------------------

    def tick(self) -> float:
        """Settle what has ended, take what is new."""
        now = self._clock.mono_us()
        if self._subscribed_at is None or now - self._subscribed_at > SUBSCRIBE_US:
            self._store.subscribe(self._application, self._names)
            self._subscribed_at = now
        self._settle()
        self._renew(now)
        free = BATCH - len(self._under_way)
        found = self._take(free) if free else []
        for event in found:
            self._under_way[event.id] = now + RENEW_US
            self._taken.put(event)
        if found:
            os.eventfd_write(self._bell, 1)
        return BUSY_SECONDS if self._under_way else LOOK_SECONDS

    def _take(self, limit: int) -> list[EventInfo]:
        return self._store.take_events(
            self._application, self._names, worker_id=self._worker_id, limit=limit, lease_us=LEASE_US
        )

    def _settle(self) -> None:
        ended = _all(self._ended)
        if not ended:
            return
        try:
            self._store.settle_events(
                self._application,
                delivered=[one.event_id for one in ended if one.failure is None],
                failed=[(one.event_id, one.failure) for one in ended if one.failure is not None],
            )
        except BaseException:
            for one in ended:  # the store is away: another time
                self._ended.put(one)
            raise
        for one in ended:
            self._under_way.pop(one.event_id, None)

    def _renew(self, now: int) -> None:
        due = [event_id for event_id, renew_at in self._under_way.items() if now >= renew_at]
        if due:
            self._store.keep_events(self._application, due, worker_id=self._worker_id, lease_us=LEASE_US)
            self._under_way |= dict.fromkeys(due, now + RENEW_US)

    # -- the main thread --------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when `turn` has something to do."""
        return self._bell

    def turn(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass
        self._waiting.extend(_all(self._taken))
        now = self._clock.mono_us()
        if self._waiting and not self._is_started and not self._is_over and now >= self._restart_at:
            self._crew.spawn(self._slot, ChildKind.EVENTS)
            self._is_started = True
        if self._sent and not self._is_late and now - self._head_since > LIMIT_US:
            self._is_late = True
            self._crew.kill(self._slot)
        while self._is_ready and self._waiting and len(self._sent) < DEPTH and self._send(self._waiting[0], now):
            self._waiting.popleft()

    def hear(self, news: News) -> None:
        """What became of our process."""
        match news:
            case ChildReady():
                self._is_ready = True
            case Finished():
                self._heard(news.outcomes)
            case Died():
                self._bury(news)
        self.turn()

    def finish(self, patience: float, wait: Callable[[], None]) -> None:
        """Deliver what is due, for a while; then end the process and give back the rest. After the loop has ended."""
        give_up = self._clock.mono_us() + round(patience * 1_000_000)
        while self._clock.mono_us() < give_up:
            self.tick()
            self.turn()
            if not self._under_way:
                break
            wait()
        self._is_over = True
        self._crew.release(self._slot) if self._is_ready and not self._sent else self._crew.kill(self._slot)
        self._settle()
        if self._under_way:
            self._store.settle_events(self._application, returned=list(self._under_way))

    @property
    def has_process(self) -> bool:
        """Until its end is heard of; after `finish` there is no other."""
        return self._is_started

    def close(self) -> None:
        os.close(self._bell)

    def _send(self, event: EventInfo, now: int) -> bool:
        if not self._crew.send(self._slot, [(0, _as_claim(event))]):
            return False
        if not self._sent:
            self._head_since = now
        self._sent[event.id] = event
        return True

    def _heard(self, outcomes: Collection[tuple[int, int, int, Outcome]]) -> None:
        for _, event_id, _, outcome in outcomes:
            if self._sent.pop(event_id, None) is not None:
                error = outcome.error
                failure = None if error is None else f"{error.exception_type or error.code}: {error.message}"
                self._ended.put(Ended(event_id, failure))
        self._head_since = self._clock.mono_us()

    def _bury(self, death: Died) -> None:
        self._heard(death.outcomes)
        unread = {event_id for event_id, _ in death.unread}
        how = f"took longer than {LIMIT_US // 1_000_000} s" if self._is_late else how_it_died(death.pid, death.status)
        if not death.was_ready and self._waiting:
            first = self._waiting.popleft()
            self._sent[first.id] = first  # or it would wait for a process for ever
        for event in reversed(self._sent.values()):
            if event.id in unread:
                self._waiting.appendleft(event)
            else:
                self._ended.put(Ended(event.id, how))
                subscriber_failed(event.name, event.id, how)
        self._sent.clear()
        self._is_started = self._is_ready = self._is_late = False
        self._short_lives = 0 if death.seconds_alive > 10 else self._short_lives + 1
        self._restart_at = self._clock.mono_us() + RESTART_US[min(self._short_lives, len(RESTART_US) - 1)]


def _all(queue: "SimpleQueue[T]") -> list[T]:
    found: list[T] = []
    while True:
        try:
            found.append(queue.get_nowait())
        except Empty:
            return found


def _as_claim(event: EventInfo) -> Claim:
    """In the words of the crew, which carries tasks."""
    return Claim(
        seq=event.id, id=str(event.id), name=event.name, queue="", fence=0, status=TaskStatus.RUNNING, attempt=1,
        free_attempts=0, crash_count=0, lost_count=0, dispatch_count=0, solo=False, policy=None,
        args=as_bytes(event), worker_id=None,
    )  # fmt: skip
