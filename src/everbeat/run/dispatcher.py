"""The heart of a worker: hears what its processes did, settles and claims in one flush, hands out what was claimed.

Here is the order of a turn; what each step does is in a module of its own:

* `hearing`     what the processes did goes into the books
* `stopping`    runs that must not go on are told to stop, and killed if they do not
* `floor`       which process has which task: sent, read back
* `processes`   started, replaced, ended
* `drain`       the end of the worker's work
* `flushing`    self-clocking transactions, no timers: whatever ended while the last ones were committed is settled
                by the next, together with new starts and claims; `scribes`, who writes them meanwhile
* `books`       what is held, and what the store is still to be told; `apart`, what somebody's lock holds up
* `pacing`      when the store is asked, and asked again
* `mandate`     what the worker may still do

Never here: user code, decisions (decide/), SQL (store/), processes themselves (crew).
"""

import random
from collections.abc import Callable, Iterator

from everbeat.clock import Clock
from everbeat.decide.pace import Pace
from everbeat.model import event
from everbeat.model.recovery import RecoveryPolicy
from everbeat.run.books import Books
from everbeat.run.deadline import HeldLease
from everbeat.run.drain import Drain
from everbeat.run.floor import Floor
from everbeat.run.flushing import Flushing
from everbeat.run.hands import Hands
from everbeat.run.hearing import Hearing
from everbeat.run.journal import Journal
from everbeat.run.keeper import Keeper
from everbeat.run.mandate import Mandate
from everbeat.run.meter import Meter
from everbeat.run.pacing import Pacing
from everbeat.run.processes import Processes
from everbeat.run.resources import resident
from everbeat.run.scribes import Writing
from everbeat.run.slot import Slots, Staffing
from everbeat.run.stopping import Stopping
from everbeat.run.stops import Stops
from everbeat.run.tally import Tally
from everbeat.run.verdicts import Verdicts
from everbeat.store.interface import Store
from everbeat.store.messages import Held

LONGEST_WAIT_US = 60_000_000


class Dispatcher:
    def __init__(
        self, *, worker_id: str, hostname: str, store: Store, crew: Hands, keeper: Keeper, journal: Journal,
        staffing: Staffing, recovery: RecoveryPolicy, lease: HeldLease, clock: Clock, scribes: Writing | None = None,
        jitter: Callable[[], float] = random.random, resident: Callable[[int], int] = resident,
    ) -> None:  # fmt: skip
        self.keeper = keeper
        self.lease = lease
        self.clock = clock
        self.turns = 0
        self.mandate = mandate = Mandate()
        self.tally = Tally()
        self.pace = pace = Pace(deepest=staffing.frame_depth)
        self.pacing = pacing = Pacing()
        self.books = books = Books(worker_id, journal)
        self.stops = stops = Stops(crew, journal)
        verdicts = Verdicts(worker_id=worker_id, hostname=hostname, policy=recovery, lease=lease, jitter=jitter)
        self.slots = Slots(staffing)
        self.processes = processes = Processes(
            crew=crew, slots=self.slots, books=books, mandate=mandate, resident=resident
        )
        self.floor = floor = Floor(
            crew=crew, journal=journal, processes=processes, books=books, stops=stops, pace=pace, lease=lease,
            mandate=mandate, clock=clock,
        )  # fmt: skip
        self._drain = Drain(crew=crew, books=books, floor=floor, processes=processes, mandate=mandate, clock=clock)
        self.hearing = Hearing(
            crew=crew, books=books, floor=floor, processes=processes, stops=stops, verdicts=verdicts,
            drain=self._drain, pacing=pacing, pace=pace, clock=clock,
        )  # fmt: skip
        self._stopping = Stopping(
            store=store, books=books, floor=floor, processes=processes, stops=stops, verdicts=verdicts, lease=lease,
            mandate=mandate, clock=clock,
        )  # fmt: skip
        self.flushing = Flushing(
            store=store, keeper=keeper, books=books, floor=floor, pacing=pacing, tally=self.tally, lease=lease,
            mandate=mandate, scribes=scribes,
        )  # fmt: skip

    # -- one turn ---------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        now = self.clock.mono_us()
        self.turns += 1
        self.flushing.take_up(now)
        self.hearing.listen(now, gathers=self.flushing.is_free)
        if self.keeper.is_late(now):
            self.keeper.write_down(self.books.unkept())
        self._heed_spool(now)
        self._stopping.go_on(now)
        self.floor.take_back_late(now)
        if self.processes.start_due(now):
            self.pacing.wake()
        self._drain.go_on(now)
        if self.pacing.may_ask(now):
            self.flushing.flush(now)

    def wait_us(self) -> int:
        """For how long nothing needs to be done unless somebody speaks."""
        now = self.clock.mono_us()
        return max(0, min(self._alarms(), default=now + LONGEST_WAIT_US) - now)

    def _alarms(self) -> Iterator[int]:
        """When something is to be done that nobody will call for."""
        if self.pacing.due_at is not None:
            yield self.pacing.due_at
        if (self.flushing.has_news or self.pacing.retries) and not self.mandate.is_displaced:
            yield self.pacing.retry_at
        if self.keeper.late_at is not None and self.books.has_unkept:
            yield self.keeper.late_at
        if self.books.apart.due_at is not None and not self.mandate.is_displaced:
            yield max(self.books.apart.due_at, self.pacing.retry_at)
        yield from self._stopping.alarms()
        yield from self.floor.alarms()
        yield from self.processes.alarms()
        yield from self._drain.alarms()

    def _heed_spool(self, now: int) -> None:
        """While outcomes can not be kept any more, what has not begun had better not begin (PROTOCOL 30)."""
        trouble, was_full = self.keeper.spool.trouble, self.mandate.is_full
        if trouble is None and not was_full:
            return
        self.mandate.is_full = trouble is not None
        self.pacing.wake()
        if trouble is not None and not was_full:
            self.books.tell(event.SPOOL_FULL, {"reason": trouble, "kept": len(self.keeper.spool)})
            for slot in self.slots.values():
                self.floor.give_back_unread(slot, now, "its worker can keep no more outcomes")

    # -- what others say --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be ready."""
        self.pacing.wake()

    def heed(self) -> None:
        """Somebody may want one of our runs to end."""
        self._stopping.heed()

    def drain(self, timeout_us: int) -> None:
        """Claim nothing more; give back at once what has not begun; let the rest end, for a while."""
        self._drain.begin(timeout_us)

    def dismiss(self) -> None:
        """End every process. What one of them had still begun is lost with this worker."""
        self._drain.dismiss()

    def keep_rest(self) -> None:
        """What the store has not taken is left to whoever comes next."""
        self.keeper.keep(self.books.endings)

    def note_unresponsive(self) -> None:
        self.processes.note_unresponsive()

    def measure_with(self, meter: Meter) -> None:
        self.hearing.meter = self.flushing.meter = meter

    # -- what others ask --------------------------------------------------------------------------------------------

    def held(self) -> list[Held]:
        """The claims to beat for. Called by the heartbeat's thread."""
        return self.books.held()

    def leased(self) -> list[Held]:
        """Those with an exclusive key. Called by the thread that renews the lease."""
        return self.books.leased()

    @property
    def may_let_gather(self) -> bool:
        """What processes say can not be settled now, and none of them is given more when it has said something: to
        wake up for each of their words takes longer than all else that is done about them."""
        return not (self.flushing.is_free or self.floor.has_backlog)

    @property
    def is_idle(self) -> bool:
        """All slots are up, nothing is held or to be settled, and the last look found nothing more to claim."""
        has_looked = self.pacing.has_found_all and not self.pacing.is_hungry
        return has_looked and self.books.are_clear and self.slots.are_open(self.clock.mono_us())

    @property
    def why_hopeless(self) -> str | None:
        """Nothing is held, nothing more can be claimed, and the processes that are missing do not come up: why not."""
        is_all_done = self.pacing.has_found_all and not self.pacing.is_hungry
        if not self.books.are_clear or not self.slots.will_not_open or (self.slots.any_open and not is_all_done):
            return None
        return self.hearing.trouble or "its processes end before they are ready"

    @property
    def is_drained(self) -> bool:
        return self._drain.is_done

    @property
    def is_dismissed(self) -> bool:
        return self._drain.is_dismissed

    @property
    def store_away_us(self) -> int:
        """For how long the store has taken nothing from us; 0 if it does, as far as is known."""
        since = self.tally.away_since
        return 0 if since is None or self.tally.is_doubted else self.clock.mono_us() - since
