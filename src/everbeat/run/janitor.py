"""Deletes what is older than it needs to be: once an hour for the whole store, in small bites.

Every worker asks each minute whether a pass is due; the moment of the last one is in the store, so an hour is an hour
however often workers come and go. One worker does it at a time (a lease, PROTOCOL 3), a bite per turn and a pause after
it, so that other writers come in between; if it dies, another one goes on.

The age of a record is a matter of the wall clock. When that was set while the worker ran, nothing is deleted for an
hour: a clock that is a year ahead must not cost a year of records before somebody sets it right.
"""

from collections import Counter, deque
from dataclasses import replace

from everbeat.clock import Clock
from everbeat.config import RecoveryConfig
from everbeat.decide.retain import cuts_for
from everbeat.model.retention import Cut, Kept
from everbeat.store.interface import Store

HOUR_US = 3_600_000_000
LOOK_SECONDS = 60.0
PAUSE_SECONDS = 0.05
LEASE_US = 60_000_000
STEP_US = 5_000_000


class Janitor:
    name = "janitor"

    def __init__(self, *, worker_id: str, store: Store, config: RecoveryConfig, clock: Clock) -> None:
        self._worker_id = worker_id
        self._store = store
        self._config = config
        self._clock = clock
        self._cuts: deque[Cut] = deque()
        self._deleted: Counter[Kept] = Counter()
        self._offset = self._clock_offset()
        self._not_before = clock.mono_us()

    def tick(self) -> float:
        if not self._is_clock_steady():
            self._cuts.clear()
        if not self._cuts and not self._begin():
            return LOOK_SECONDS
        bite = self._store.retain(self._cuts[0], worker_id=self._worker_id, lease_us=LEASE_US)
        if bite is None:  # somebody else does it
            self._cuts.clear()
            return LOOK_SECONDS
        cut = self._cuts.popleft()
        self._deleted[cut.kept] += bite.deleted
        if bite.after is not None:
            self._cuts.appendleft(replace(cut, after=bite.after))
        if self._cuts:
            return PAUSE_SECONDS if bite.deleted else 0.0
        self._store.retention_done(self._deleted)
        return LOOK_SECONDS

    def _begin(self) -> bool:
        config = self._config
        cuts = cuts_for(
            heartbeat_hours=config.heartbeat_retention_hours,
            worker_state_hours=config.worker_state_retention_hours,
            record_hours=config.terminal_record_retention_hours,
        )
        if not cuts or self._clock.mono_us() < self._not_before or not self._store.retention_is_due(every_us=HOUR_US):
            return False
        self._cuts, self._deleted = deque(cuts), Counter()
        return True

    def _is_clock_steady(self) -> bool:
        offset = self._clock_offset()
        moved, self._offset = abs(offset - self._offset), offset
        if moved > STEP_US:
            self._not_before = self._clock.mono_us() + HOUR_US
        return moved <= STEP_US

    def _clock_offset(self) -> int:
        return self._clock.wall_us() - self._clock.mono_us()
