"""The drill itself: send, do violence, let everything come to its end, gather the facts.

The thread that waits and hurts never touches the store: a worker that is frozen in the middle of a transaction blocks
whoever does, and it is this thread that has to wake it.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from everbeat.drill.ground import Ground
from everbeat.drill.harm import KILLS_WORKERS
from everbeat.drill.ledger import Reader
from everbeat.drill.plan import Plan, Sending
from everbeat.drill.tasks import QUEUE, app, task_of
from everbeat.drill.verdict import Facts, Stored, Verdict, judge
from everbeat.drill.violence import Violence
from everbeat.drill.workers import Workers
from everbeat.errors import StoreUnavailable
from everbeat.model import event
from everbeat.model.event import EventInfo
from everbeat.model.worker import WorkerInfo, WorkerStatus
from everbeat.store.interface import Store

LOOK_SECONDS = 0.02
TELL_SECONDS = 0.5
AGAIN_SECONDS = 0.1
"""Until a store that could not be reached is sent to again."""
START_SECONDS = 60.0
STUCK_SECONDS = 60.0
"""Nothing has ended for so long, and something is left: it is stuck."""
KNOWN_SECONDS = 20.0
"""Who was killed last is known to be dead by then."""


class DrillFailed(Exception):
    """It could not be held at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How far it is."""

    stage: str
    seconds: float
    accepted: int
    ended: int
    """Runs that came to their end."""
    deeds: dict[str, int]


@dataclass(slots=True, eq=False)
class _Sender:
    """A thread that sends what is planned, when it is planned, and remembers what was accepted."""

    plan: Plan
    started_at: float
    accepted: dict[str, Sending] = field(default_factory=dict)
    is_told_to_stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._send_all, name="drill-sender", daemon=True)
        self.thread.start()

    def _send_all(self) -> None:
        for sending in self.plan.sendings:
            if self.is_told_to_stop.wait(max(0.0, self.started_at + sending.at - time.monotonic())):
                return
            self._send(sending)

    def _send(self, sending: Sending) -> None:
        """Again and again until it is accepted, under the same id: it is stored once."""
        task = task_of(sending.kind).options(id=sending.id, exclusive_key=sending.key)
        while not self.is_told_to_stop.is_set():
            try:
                task.enqueue(sending.work_ms)
            except StoreUnavailable:
                self.is_told_to_stop.wait(AGAIN_SECONDS)
                continue
            self.accepted[sending.id] = sending
            return


class Drill:
    def __init__(
        self, plan: Plan, ground: Ground, *, tell: Callable[[Snapshot], None], kill_database: str | None = None
    ) -> None:
        self._plan = plan
        self._tell = tell
        self._told_at = 0.0
        self._workers = Workers(ground.directory, ground.url, plan.workers, plan.mark)
        self._ledger = Reader(ground.directory / "ledger")
        self._violence = Violence(self._workers, self._ledger, kill_database=kill_database)
        self._url = ground.url
        self._began_at = datetime.now(UTC)
        self._stage = "starting the workers"
        self._started_at = time.monotonic()
        self._sender: _Sender | None = None

    def hold(self) -> Verdict:
        try:
            self._start()
            self._hurt()
            self._let_end()
            facts = self._gather()
        finally:
            if self._sender is not None:
                self._sender.is_told_to_stop.set()
            self._violence.thaw(everybody=True)
            self._workers.stop()
            left = self._workers.sweep()
            app.close()
        complaints = [*self._workers.complaints, *(f"process {pid} had to be killed at the end" for pid in left)]
        return judge(facts(complaints))

    # -- the stages ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        app.move_to(self._url, where="--db")
        self._workers.tend()
        self._wait(self._workers.are_ready, START_SECONDS, "the workers to be ready")
        if self._workers.complaints:
            raise DrillFailed(self._workers.complaints[0])

    def _hurt(self) -> None:
        self._stage = "violence"
        self._started_at = time.monotonic()
        self._sender = _Sender(self._plan, self._started_at)
        acts = list(self._plan.acts)
        while (now := time.monotonic() - self._started_at) < self._plan.seconds:
            while acts and acts[0].at <= now:
                self._violence.do(acts.pop(0))
            self._turn()
        self._violence.end()

    def _let_end(self) -> None:
        """Until every accepted task has ended, or nothing has for a long time."""
        self._stage = "letting everything end"
        assert self._sender is not None
        give_up = time.monotonic() + STUCK_SECONDS
        while self._sender.thread.is_alive() and time.monotonic() < give_up:
            self._turn()
        self._sender.is_told_to_stop.set()
        if missing := len(self._plan.sendings) - len(self._sender.accepted):
            self._workers.complaints.append(f"{missing} tasks could not be sent")
        left, since = -1, time.monotonic()
        while (unended := self._unended()) and time.monotonic() - since < STUCK_SECONDS:
            if unended != left:
                left, since = unended, time.monotonic()
            self._turn(0.2)
        give_up = time.monotonic() + KNOWN_SECONDS
        while self._unknown_dead() and time.monotonic() < give_up:
            self._turn(0.2)

    def _gather(self) -> Callable[[Collection[str]], Facts]:
        self._stage = "the verdict"
        assert self._sender is not None
        store = app.store
        events = _events(store, since=self._began_at - timedelta(seconds=1))
        refused = {one.task_id for one in events if one.name == event.OUTCOME_REFUSED}
        stored: dict[str, Stored] = {}
        for task_id in self._sender.accepted:
            found = _stored(store, task_id, has_late=task_id in refused)
            if found is not None:
                stored[task_id] = found
        accepted, workers = self._sender.accepted, self._rows()
        return lambda complaints: Facts(
            accepted=accepted,
            stored=stored,
            lines=self._ledger.read(),
            done=self._violence.done,
            events=events,
            workers=workers,
            complaints=list(complaints),
        )

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _turn(self, pause: float = LOOK_SECONDS) -> None:
        self._violence.thaw()
        self._workers.tend()
        if time.monotonic() - self._told_at > TELL_SECONDS:
            self._told_at = time.monotonic()
            self._tell(self._snapshot())
        time.sleep(pause)

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        give_up = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > give_up or self._workers.complaints:
                raise DrillFailed("; ".join(self._workers.complaints) or f"waited {seconds:.0f}s in vain for {what}")
            self._turn()

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            stage=self._stage,
            seconds=time.monotonic() - self._started_at,
            accepted=len(self._sender.accepted) if self._sender else 0,
            ended=self._ledger.ends(),
            deeds={deed.value: count for deed, count in Counter(one.deed for one in self._violence.done).items()},
        )

    def _unended(self) -> int:
        """How many tasks of the drill have not ended; all of them while the store can not be read."""
        try:
            counts = app.store.counts()
        except StoreUnavailable:
            return len(self._plan.sendings)
        return sum(one.count for one in counts if one.queue == QUEUE and not one.status.is_terminal)

    def _rows(self) -> list[WorkerInfo]:
        """Of the workers of this drill."""
        return [row for row in app.store.workers() if row.name.startswith(f"{self._plan.mark}-")]

    def _unknown_dead(self) -> bool:
        """Somebody was killed and is alive in the store."""
        killed = {pid for one in self._violence.done if one.deed in KILLS_WORKERS for pid in one.workers}
        try:
            return any(row.host.pid in killed and row.status is WorkerStatus.ALIVE for row in self._rows())
        except StoreUnavailable:
            return True


def _events(store: Store, *, since: datetime) -> list[EventInfo]:
    found: list[EventInfo] = []
    while more := store.events(after=found[-1].id if found else 0, since=since, limit=1000):
        found += more
    return found


def _stored(store: Store, task_id: str, *, has_late: bool) -> Stored | None:
    info = store.get(task_id)
    if info is None:
        return None
    end = store.finished(task_id)
    late = frozenset(one.attempt for one in store.late_outcomes(task_id)) if has_late else frozenset()
    return Stored(info=info, result=None if end is None or end.result is None else json.loads(end.result), late=late)
