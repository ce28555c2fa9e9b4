"""The heart of a worker: hears what its processes did, settles and claims in one flush, hands out what was claimed.

One self-clocking flush per turn (no timers): whatever ended while the last one was being committed is settled by the
next, together with new starts and claims. RUNNING is committed before the bytes of a task reach a process (P4).

* An ownership ends in exactly one `Verdict`; it is held, and beaten for, until the flush that settles it is committed.
* A store that can not be written changes nothing here: outcomes stay, processes go on, the flush is tried again (P8).
* Of the tasks that wait behind a slow one in a slot's queue, what has not begun is read back (PROTOCOL 19).
* Runs that are over their time or were cancelled are told to stop, and killed with their process if they do not
  (stops.py).
* A task with an exclusive key runs while its lease is renewed by the store's answers, and is stopped when it is not
  (PROTOCOL 24). The fork server sees to it as well.
* After the death of a process: its complete outcomes count, what it had not read goes back unbilled, and for what it
  had begun `recovery_for` decides (PROTOCOL 5, 20, 21, 23).

Never here: user code, decisions (decide/), SQL (store/), processes themselves (crew).
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from everbeat.clock import Clock
from everbeat.crashpoint import crash_point
from everbeat.decide.pace import Pace
from everbeat.decide.room import ASYNC_SLOT, OWN_PROCESS, Room
from everbeat.decide.stop import Step, cancelled_unbegun
from everbeat.errors import StoreUnavailable
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import Cause, RecoveryPolicy, Verdict
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, Outcome
from everbeat.run.crew import Crew
from everbeat.run.deadline import HeldLease
from everbeat.run.journal import Journal
from everbeat.run.keeper import Keeper
from everbeat.run.meter import Meter
from everbeat.run.news import AppFailed, AppReady, ChildReady, Died, Finished, News, Reported
from everbeat.run.refusals import Entered, Refusals
from everbeat.run.resources import resident
from everbeat.run.slot import Flight, Slot, Slots, SlotState, Staffing
from everbeat.run.stops import Stops, Watched
from everbeat.run.tally import Tally
from everbeat.run.verdicts import Verdicts, cause_of, give_back
from everbeat.run.wire import ChildKind, InterruptKind
from everbeat.run.words import how_it_died
from everbeat.store.interface import Ending, Flush, Flushed, Held, Report, Store
from everbeat.store.transaction import RowRefused

GATHER_US = 1_000
TAKE_BACK_US = 20_000
HEED_AGAIN_US = 500_000
INTERRUPT_GRACE_US = 2_000_000
HOPELESS_US = 10_000_000
SHORT_LIFE_SECONDS = 1.0
RESTART_US = (0, 100_000, 500_000, 2_000_000, 5_000_000)
STORE_RETRY_US = (50_000, 100_000, 200_000, 500_000, 1_000_000)


@dataclass(slots=True)
class Draining:
    give_up_at: int
    interrupted: bool = False
    killed: bool = False

    def is_hopeless(self, now: int) -> bool:
        """Everything was killed long ago and the store still can not be told: whoever comes next recovers it."""
        return self.killed and now > self.give_up_at + INTERRUPT_GRACE_US + HOPELESS_US


class Dispatcher:
    def __init__(
        self,
        *,
        worker_id: str,
        hostname: str,
        store: Store,
        crew: Crew,
        keeper: Keeper,
        journal: Journal,
        staffing: Staffing,
        recovery: RecoveryPolicy,
        lease: HeldLease,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        resident: Callable[[int], int] = resident,
    ) -> None:
        self.worker_id = worker_id
        self.hostname = hostname
        self.store = store
        self.crew = crew
        self.keeper = keeper
        self.journal = journal
        self.staffing = staffing
        self.verdicts = Verdicts(worker_id=worker_id, hostname=hostname, policy=recovery, jitter=jitter)
        self.lease = lease
        self.clock = clock
        self.resident = resident
        self.pace = Pace(deepest=staffing.frame_depth)
        self.tally = Tally()
        self.slots = Slots(staffing)
        self.stops = Stops(crew, journal)
        self.meter: Meter | None = None
        self.elsewhere: Callable[[News], None] = lambda news: None
        """Told of processes that run no tasks."""
        self._held: dict[tuple[int, int], tuple[Claim, Slot]] = {}
        self._stuck: dict[tuple[int, int], tuple[Claim, Slot]] = {}
        """What is ours and can not be ended, because the store takes nothing of it."""
        self._leased: dict[tuple[int, int], tuple[Claim, Slot]] = {}
        """What is held and has an exclusive key."""
        self._refusals = Refusals(worker_id)
        self.is_fenced = False
        self.is_displaced = False
        """The store is not the one that we entered (PROTOCOL 8): nothing is written to it, outcomes are kept."""
        self.seen_beat = 0
        """The last beat that the store has acknowledged."""
        self.turns = 0
        self._hungry = True
        self._found_all = False
        self._endings: list[Entered] = []
        self._events: list[Event] = []
        self._reports: dict[tuple[int, int, bool], Report] = {}
        self._due_at: int | None = None
        self._retry_at = 0
        self._retries = 0
        self._is_full = False
        """It was said that no more outcomes can be kept."""
        self._heed_at: int | None = None
        """When to read which of our runs somebody wants to end."""
        self._draining: Draining | None = None
        self._dismissed = False

    # -- one turn ---------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.turns += 1
        now = self.clock.mono_us()
        self._listen(now)
        if self._is_full or self.keeper.spool.trouble is not None:
            self._heed_spool(now)
        if self._heed_at is not None and now >= self._heed_at:
            self._heed_requests(now)
        if self.stops.look_at is not None and now >= self.stops.look_at:
            self._stop_runs(now)
        if self._leased and self.lease.left_us() <= 0:
            self._stop_leased()
        self._take_back_late(now)
        self._restart_slots(now)
        if self._draining:
            self._drain_on(now)
        if self._due_at is not None and now >= self._due_at:
            self._due_at, self._hungry = None, True
        if now >= self._retry_at:
            self._flush(now)

    def wake(self) -> None:
        """Something may be ready."""
        self._hungry = True

    def heed(self) -> None:
        """Somebody may want one of our runs to end."""
        self._heed_at = self.clock.mono_us()

    def wait_us(self) -> int:
        """For how long nothing needs to be done unless somebody speaks."""
        if self.keeper.has_news:
            return 0
        now = self.clock.mono_us()
        return max(0, min(self._alarms(), default=now + 60_000_000) - now)

    def held(self) -> list[Held]:
        """The claims to beat for, from the claim until their end is committed. Called by the heartbeat's thread."""
        return [_as_held(claim, slot) for claim, slot in (*self._held.values(), *self._stuck.values())]

    def leased(self) -> list[Held]:
        """Those with an exclusive key, once their process has them. Called by the heartbeat's thread."""
        return [_as_held(claim, slot) for claim, slot in tuple(self._leased.values())]

    def note_unresponsive(self) -> None:
        """A process that is alive but silent is busy in C code, or stopped: it is said once, and beaten for."""
        for slot in self.slots.values():
            silent = slot.state is SlotState.READY and bool(slot.queue) and not self.crew.responsive(slot.number)
            if silent and not slot.is_silent:
                tasks = [flight.claim.id for flight in slot.queue.values()]
                facts = {"slot": slot.number, "pid": slot.pid, "tasks": tasks[:10]}
                self._events.append(Event(name=event.CHILD_UNRESPONSIVE, worker_id=self.worker_id, facts=facts))
            slot.is_silent = silent

    @property
    def is_idle(self) -> bool:
        """All slots are up, nothing is held or to be settled, and the last look found nothing more to claim."""
        is_done = not self._held and not self._endings and not self._hungry
        return is_done and self._found_all and self.slots.are_open(self.clock.mono_us())

    # -- stopping ---------------------------------------------------------------------------------------------------

    def drain(self, timeout_us: int) -> None:
        """Claim nothing more; give back at once what has not begun; let the rest end, for a while."""
        now = self.clock.mono_us()
        if self._draining:
            self._draining.give_up_at = min(self._draining.give_up_at, now + timeout_us)
            return
        self._draining = Draining(give_up_at=now + timeout_us)
        for slot in self.slots.values():
            if slot.waiting is not None:
                self._settle(slot.waiting, give_back(slot.waiting, "its worker stops"))
                slot.waiting = None
                self._end_process(slot)
            self._give_back_unread(slot, now, "its worker stops")

    @property
    def is_draining(self) -> bool:
        return self._draining is not None

    @property
    def store_away_us(self) -> int:
        """For how long the store has taken nothing from us; 0 if it does."""
        since = self.tally.away_since
        return 0 if since is None else self.clock.mono_us() - since

    @property
    def is_drained(self) -> bool:
        if self._draining is None:
            return False
        if self.is_displaced:
            return not any(slot.queue for slot in self.slots.values())
        return (not self._held and not self._endings) or self._draining.is_hopeless(self.clock.mono_us())

    def dismiss(self) -> None:
        """End every process. What one of them had still begun is lost with this worker."""
        self._dismissed = True
        for slot in self.slots.values():
            if slot.state is not SlotState.EMPTY:
                slot.ends_for = slot.ends_for or Cause.LOST
                if slot.queue or slot.state is not SlotState.READY:
                    self._end_process(slot)
                else:
                    self._let_process_go(slot)

    def keep_rest(self) -> None:
        """What the store has not taken is left to whoever comes next."""
        self.keeper.keep([ending for ending, _ in self._endings])

    @property
    def is_dismissed(self) -> bool:
        is_told = self.is_displaced or not self._endings
        return is_told and all(slot.state is SlotState.EMPTY for slot in self.slots.values())

    # -- hearing ----------------------------------------------------------------------------------------------------

    def _listen(self, now: int) -> None:
        """Hear all there is. Slots that are about to end as well are worth a moment: one commit settles them all."""
        for news in self.keeper.collect():
            self._hear(news, now)
        until = now + GATHER_US
        while self._endings and self._rest_ends_at_once() and self.clock.mono_us() < until and self.crew.wait():
            for news in self.keeper.collect():
                self._hear(news, now)

    def _rest_ends_at_once(self) -> bool:
        """Every task that is still in a process is the last one there, and shorter than a commit."""
        busy = [slot for slot in self.slots.values() if slot.queue]
        return bool(busy) and all(
            len(slot.queue) == 1 and self.pace.is_short(flight.claim.name)
            for slot in busy
            for flight in slot.queue.values()
        )

    def _hear(self, news: News, now: int) -> None:
        if not isinstance(news, AppFailed | AppReady) and news.slot not in self.slots:
            self.elsewhere(news)
            return
        match news:
            case Finished():
                slot = self.slots[news.slot]
                self._take_outcomes(slot, news.outcomes, now)
                if self.staffing.max_memory is not None:
                    self._weigh(slot, self.staffing.max_memory, now)
                if not slot.queue and (slot.kind is ChildKind.OWN or slot.is_retiring):
                    self._let_process_go(slot)
            case Reported():
                self._take_reports(self.slots[news.slot], news.reports)
            case ChildReady():
                self._ready(self.slots[news.slot], news.pid)
            case Died():
                self._bury(self.slots[news.slot], news, now)
            case AppFailed():
                facts = {"kind": news.kind, "message": news.message}
                self._events.append(Event(name=event.APP_FAILED, worker_id=self.worker_id, facts=facts))
            case AppReady():  # by a new fork server, which has imported the application as it is now
                sync_names, async_names = frozenset(news.facts.sync_names), frozenset(news.facts.async_names)
                self.staffing = replace(self.staffing, sync_names=sync_names, async_names=async_names)
                self._hungry = True

    def _ready(self, slot: Slot, pid: int) -> None:
        slot.pid = pid
        if slot.state is SlotState.STARTING:
            slot.state, self._hungry = SlotState.READY, True

    def _take_outcomes(self, slot: Slot, outcomes: Iterable[tuple[int, int, int, Outcome]], now: int) -> None:
        was_told = self._draining is not None and self._draining.interrupted
        for _, seq, fence, outcome in outcomes:
            flight = slot.remove((seq, fence), now)
            if flight is None:
                continue
            if self.stops.watched:
                self.stops.forget(slot, (seq, fence), now)
            crash_point("finish.received")
            claim = flight.claim
            self.pace.saw(claim.name, outcome.ended_at - outcome.began_at)
            if self.meter is not None:
                self.meter.ran(claim.name, (outcome.ended_at - outcome.began_at) / 1e6)
            verdict = self.verdicts.on_outcome(claim, outcome, slot.pid, was_told=was_told)
            self._settle(claim, verdict, outcome=outcome, pid=slot.pid, entry=flight.entry)

    def _take_reports(self, slot: Slot, reports: Iterable[tuple[int, int, str | None]]) -> None:
        """The last word of each run that is still going on."""
        for seq, fence, progress in reports:
            flight = slot.queue.get((seq, fence))
            if flight is not None:
                report = Report(claim=flight.claim, pid=slot.pid or 0, progress=progress)
                self._reports[seq, fence, progress is None] = report

    def _bury(self, slot: Slot, death: Died, now: int) -> None:
        self._take_outcomes(slot, death.outcomes, now)
        for key in death.unread:
            flight = slot.remove(key, now)
            if flight is not None:
                self._settle(
                    flight.claim, give_back(flight.claim, "its process died before taking it"), entry=flight.entry
                )
        if death.overdue:
            slot.ends_because = self._lease_is_over(death.pid)
        evidence = slot.ends_because or f"{how_it_died(death.pid, death.status)} on {self.hostname}"
        begun = [flight for flight in slot.queue.values() if self._has_begun(flight)]
        for flight in slot.queue.values():
            watched = self.stops.forget(slot, flight.key, now)
            if watched is not None and watched.was_killed:
                verdict = self.verdicts.on_kill(watched, death.pid)
            else:
                verdict = self.verdicts.on_end(
                    flight.claim, cause_of(slot, death, flight in begun, len(begun)), evidence
                )
            self._settle(flight.claim, verdict, pid=death.pid, entry=flight.entry)
        if slot.waiting is not None:
            self._settle(slot.waiting, self.verdicts.on_end(slot.waiting, Cause.NEVER_BEGAN, evidence))
        expected = slot.state is SlotState.DYING or death.overdue
        if not expected:
            facts = {"slot": slot.number, "pid": death.pid, "status": death.status, "tasks": len(begun)}
            self._events.append(Event(name=event.CHILD_DIED, worker_id=self.worker_id, facts=facts))
        slot.queue.clear()
        slot.waiting, slot.pid, slot.state, slot.is_retiring = None, None, SlotState.EMPTY, False
        slot.ends_for = slot.ends_because = None
        lived = expected or bool(begun) or (death.was_ready and death.seconds_alive >= SHORT_LIFE_SECONDS)
        slot.short_lives = 0 if lived else slot.short_lives + 1
        pause = RESTART_US[min(slot.short_lives, len(RESTART_US) - 1)]
        slot.restart_at = now + pause if self.slots.needs_another(slot) else None

    def _has_begun(self, flight: Flight) -> bool:
        return self.journal.begun_ns(flight.entry, flight.claim.seq, flight.claim.fence) is not None

    def _settle(
        self, claim: Claim, verdict: Verdict, *, outcome: Outcome | None = None, pid: int | None = None,
        entry: int | None = None,
    ) -> None:  # fmt: skip
        self._endings.append((Ending(claim=claim, verdict=verdict, outcome=outcome, pid=pid), entry))

    # -- processes --------------------------------------------------------------------------------------------------

    @property
    def _is_closing(self) -> bool:
        """No process is started any more, and nothing claimed."""
        return self._draining is not None or self._dismissed or self.is_fenced

    @property
    def _starts_nothing(self) -> bool:
        return self._is_closing or self._is_full or self.is_displaced

    def _restart_slots(self, now: int) -> None:
        for slot in self.slots.values():
            if self._is_closing or slot.restart_at is None or not slot.may_start(now):
                continue
            if not self.slots.needs_another(slot):
                slot.restart_at = None
                continue
            if slot.kind is ChildKind.OWN:
                slot.restart_at, self._hungry = None, True  # a task may wait for it
            else:
                self._spawn(slot)

    def _spawn(self, slot: Slot) -> None:
        slot.state, slot.restart_at, slot.sent = SlotState.STARTING, None, 0
        self.crew.spawn(slot.number, slot.kind)

    def _end_process(self, slot: Slot) -> None:
        slot.state = SlotState.DYING
        self.crew.kill(slot.number)

    def _let_process_go(self, slot: Slot) -> None:
        """It has nothing to do, and may do what its application wants done at the end."""
        slot.state = SlotState.DYING
        self.crew.release(slot.number)

    def _retire(self, slot: Slot, now: int) -> None:
        """Its process takes nothing new, and goes when what it has is done. The next async one is started meanwhile."""
        slot.is_retiring = True
        if slot.kind is ChildKind.ASYNC and (twin := self.slots.twin(slot)).state is SlotState.EMPTY:
            twin.restart_at = now

    def _count(self, slot: Slot, most: int, now: int) -> None:
        """Replace a process that was given as many tasks as it may have."""
        if slot.sent >= most and self._is_replaceable(slot):
            self._retire(slot, now)

    def _weigh(self, slot: Slot, most: int, now: int) -> None:
        """Replace a process that a task has left too large. What it has not taken goes elsewhere."""
        if self._is_replaceable(slot) and self.resident(slot.pid or 0) > most:
            self._retire(slot, now)
            self._give_back_unread(slot, now, "its process is to be replaced")

    def _is_replaceable(self, slot: Slot) -> bool:
        """Of the async processes, only if another can take over: until then it serves on."""
        if slot.kind is ChildKind.ASYNC and self.slots.twin(slot).state is not SlotState.EMPTY:
            return False
        return slot.is_open and slot.kind is not ChildKind.OWN

    def _heed_requests(self, now: int) -> None:
        """What has not begun is taken back and cancelled at once; what has is told to stop."""
        try:
            asked = self.store.cancel_requests(self.worker_id) if self._held else []
        except StoreUnavailable:
            self._heed_at = now + HEED_AGAIN_US
            return
        self._heed_at = None
        for key in asked:
            claim, slot = self._held.get(key, (None, None))
            if claim is None or slot is None:
                continue
            claim.cancel_requested = True
            if key in slot.queue and not self._has_begun(slot.queue[key]):
                self._give_back_unread(slot, now, "a task before it was cancelled")
            if key in slot.queue:
                self.stops.cancel(slot, slot.queue[key], now)

    def _stop_runs(self, now: int) -> None:
        for step, watched in self.stops.step(now):
            slot = watched.slot
            if step is Step.DRAIN and not slot.is_retiring:
                self._retire(slot, now)
                self._give_back_unread(slot, now, "its process is to be replaced")
            elif step is Step.KILL and slot.state is SlotState.READY:
                self._kill_for(watched)

    def _running_leased(self) -> Iterator[Slot]:
        """Slots that run a task with an exclusive key, and are not being ended."""
        for key, (_, slot) in self._leased.items():
            if key in slot.queue and slot.state is SlotState.READY:
                yield slot

    def _stop_leased(self) -> None:
        """The fork server does it, too, whatever becomes of us; whoever is first."""
        for slot in list(self._running_leased()):
            slot.ends_for, slot.ends_because = Cause.LEASE_LOST, self._lease_is_over(slot.pid)
            self._end_process(slot)

    def _lease_is_over(self, pid: int | None) -> str:
        silent = (self.lease.lease.stop_us - self.lease.left_us()) / 1e6
        return (
            f"process {pid} on {self.hostname} was stopped: worker {self.worker_id} has had no answer from the store "
            f"for {silent:.1f}s, and others may have its exclusive keys after {self.lease.lease.lease_us / 1e6:.0f}s"
        )

    def _kill_for(self, watched: Watched) -> None:
        """End a process for the sake of a run in it. The others did nothing wrong."""
        slot, claim = watched.slot, watched.flight.claim
        slot.ends_for = Cause.NEIGHBOUR
        where = f"process {slot.pid} on {self.hostname}"
        slot.ends_because = f"{where} was killed because task {claim.id} in it did not stop"
        why = (
            "it was cancelled" if watched.why is InterruptKind.CANCEL else f"its timeout of {claim.timeout:g} s is over"
        )
        facts = {"slot": slot.number, "pid": slot.pid, "name": claim.name, "reason": f"{why} and it did not stop"}
        self._events.append(Event(name=event.CHILD_KILLED, task_id=claim.id, worker_id=self.worker_id, facts=facts))
        self._end_process(slot)

    def _take_back_late(self, now: int) -> None:
        """What waits behind a task that turned out slow goes to another slot, or back to the queue."""
        for slot in self.slots.values():
            if slot.kind is not ChildKind.SYNC or len(slot.queue) < 2 or now - slot.head_since < TAKE_BACK_US:
                continue
            head = slot.head
            if head is not None:
                self.pace.saw(head.claim.name, now - slot.head_since)
            self._give_back_unread(slot, now, "it waited behind a slow task")

    def _give_back_unread(self, slot: Slot, now: int, reason: str) -> None:
        if not slot.queue:
            return
        for key in self.crew.take_back(slot.number):
            flight = slot.queue.pop(key, None)
            if flight is None:
                continue
            slot.sent -= 1
            self.stops.forget(slot, key, now)
            if flight.claim.cancel_requested:
                self._settle(flight.claim, cancelled_unbegun())
                self.journal.release(flight.entry)
                continue
            other = None if self._starts_nothing or slot.kind is not ChildKind.SYNC else self.slots.idle(now)
            if other is None or not self._send(other, [flight.claim], now):
                self._settle(flight.claim, give_back(flight.claim, reason))
            self.journal.release(flight.entry)
        if slot.is_retiring and not slot.queue and slot.state is SlotState.READY:
            self._let_process_go(slot)

    def _heed_spool(self, now: int) -> None:
        """While outcomes can not be kept any more, what has not begun had better not begin (PROTOCOL 30)."""
        trouble, was_full = self.keeper.spool.trouble, self._is_full
        self._is_full, self._hungry = trouble is not None, True
        if trouble is None or was_full:
            return
        facts = {"reason": trouble, "kept": len(self.keeper.spool)}
        self._events.append(Event(name=event.SPOOL_FULL, worker_id=self.worker_id, facts=facts))
        for slot in self.slots.values():
            self._give_back_unread(slot, now, "its worker can keep no more outcomes")

    def _send(self, slot: Slot, claims: Sequence[Claim], now: int) -> bool:
        is_exclusive = claims[0].exclusive_key is not None  # then it is the only one
        if is_exclusive and self.lease.left_us() <= 0:
            return False
        flights = [Flight(claim, self.journal.allocate()) for claim in claims]
        if not self.crew.send(slot.number, [(flight.entry, flight.claim) for flight in flights]):
            for flight in flights:
                self.journal.release(flight.entry)
            slot.refuse(now)
            return False
        crash_point("start.sent")
        for flight in flights:
            slot.add(flight, now)
            if flight.claim.timeout is not None:
                self.stops.watch(slot, flight, now)
            self._held[flight.claim.seq, flight.claim.fence] = flight.claim, slot
            if is_exclusive:
                self._leased[flight.claim.seq, flight.claim.fence] = flight.claim, slot
        slot.sent += len(flights)
        if self.staffing.max_tasks is not None:
            self._count(slot, self.staffing.max_tasks, now)
        return True

    # -- the flush --------------------------------------------------------------------------------------------------

    def _has_news_for_store(self) -> bool:
        return bool(self._endings or self._events or self._reports or self.slots.to_start())

    def _room(self, now: int) -> Room:
        if self._starts_nothing:
            return Room(frozenset(), frozenset(), None)
        return self.slots.room(self.staffing, self.pace.depths, now)

    def _flush(self, now: int) -> None:
        if self.is_displaced:
            self.keep_rest()
            return
        room = self._room(now)
        is_offer = not room.is_empty
        if not self._has_news_for_store() and not (is_offer and self._hungry):
            self._retries, self.tally.away_since = 0, None
            return
        endings, starts, events = self._endings, self.slots.to_start(), self._events
        wanted = Flush(
            worker_id=self.worker_id, endings=[ending for ending, _ in endings], starts=starts, room=room,
            events=events, reports=list(self._reports.values()), seen_beat=self.seen_beat,
        )  # fmt: skip
        sent_at = self.lease.now_us()
        flushed = self._write(wanted, now)
        if flushed is None or flushed.is_older:
            return
        if any(claim.exclusive_key is not None for claim in (*flushed.started, *flushed.claims)):
            self.lease.answered(sent_at)
        self._retries, self._retry_at = 0, 0
        self._endings, self._events, self._reports = [], [], {}
        if flushed.refused:
            endings = self._set_aside(endings, flushed)
        self._let_go(endings)
        self.tally.count(wanted.endings, flushed.settlements)
        if self.meter is not None:
            self.meter.flushed(len(wanted.endings) + len(flushed.started) + len(flushed.claims))
        if endings:
            crash_point("finish.after_commit")
        if not flushed.alive:
            self.is_fenced = True
            return
        if is_offer:
            self._hungry = room.is_empty and bool(flushed.claims)
            self._found_all = not room.is_empty
        if flushed.next_due_in_us is not None:
            self._due_at = now + flushed.next_due_in_us
        self._launch(starts, flushed.started, flushed.claims)

    def _write(self, wanted: Flush, now: int) -> Flushed | None:
        """None: the store is away. A row that it refuses is left out the second time."""
        flushed: Flushed | None = None
        self.keeper.begin(wanted.endings, self._held, now)
        try:
            try:
                flushed = self.store.flush(wanted)
            except RowRefused:
                flushed = self.store.flush(replace(wanted, room=self._room(now), row_by_row=True))
        except StoreUnavailable as error:
            self._store_failed(error, now)
        finally:
            self.keeper.end(is_stored=flushed is not None and not flushed.is_older)
        if flushed is not None and flushed.is_older:
            self.is_displaced = True
        return flushed

    def _set_aside(self, endings: Sequence[Entered], flushed: Flushed) -> list[Entered]:
        """What the store has refused; the rest is returned."""
        self._events += self._refusals.news(flushed)
        found = self._refusals.sort(endings, flushed)
        self._endings += found.again
        for ending, _ in found.stuck:
            key = ending.claim.seq, ending.claim.fence
            self._stuck[key] = self._held.pop(key)
        return found.settled

    def _store_failed(self, error: StoreUnavailable, now: int) -> None:
        self.tally.store_errors += 1
        self.tally.away_since = self.tally.away_since or now
        self.tally.last_error = str(error)
        self._retry_at = now + STORE_RETRY_US[min(self._retries, len(STORE_RETRY_US) - 1)]
        self._retries += 1

    def _let_go(self, endings: Sequence[tuple[Ending, int | None]]) -> None:
        for ending, entry in endings:
            self._held.pop((ending.claim.seq, ending.claim.fence), None)
            self._leased.pop((ending.claim.seq, ending.claim.fence), None)
            if entry is not None:
                self.journal.release(entry)

    def _launch(self, starts: Sequence[Claim], started: Sequence[Claim], claims: Sequence[Claim]) -> None:
        if starts:
            crash_point("start.after_commit")
        if claims:
            crash_point("claim.after_commit")
        now = self.clock.mono_us()
        for slot in self.slots.values():
            if slot.waiting is not None and slot.waiting in starts:
                self._start_own(slot, slot.waiting, started, now)
        by_slot: dict[int, list[Claim]] = {}
        for claim in claims:
            if claim.slot == OWN_PROCESS:
                self._give_own_process(claim, now)
            else:
                by_slot.setdefault(claim.slot, []).append(claim)
        for number, batch in by_slot.items():
            shared = self.slots.shared if number == ASYNC_SLOT else None
            self._hand_out(shared or self.slots[number], batch, now)

    def _start_own(self, slot: Slot, claim: Claim, started: Sequence[Claim], now: int) -> None:
        slot.waiting = None
        if claim not in started or not self._send(slot, [claim], now):
            self._settle(claim, give_back(claim, "it could not be started"))
            self._end_process(slot)

    def _give_own_process(self, claim: Claim, now: int) -> None:
        slot = next(slot for slot in self.slots.of(ChildKind.OWN) if slot.may_start(now))
        slot.waiting = claim
        self._held[claim.seq, claim.fence] = claim, slot
        self._spawn(slot)

    def _hand_out(self, slot: Slot, claims: Sequence[Claim], now: int) -> None:
        for claim in claims:
            self._held[claim.seq, claim.fence] = claim, slot
        if not self._send(slot, claims, now):
            for claim in claims:
                self._settle(claim, give_back(claim, "its process could take no more"))

    # -- draining ---------------------------------------------------------------------------------------------------

    def _drain_on(self, now: int) -> None:
        """Time is up for what still runs: interrupt it, and kill what does not listen."""
        draining = self._draining
        if draining is None or now < draining.give_up_at:
            return
        if not draining.interrupted:
            draining.interrupted = True
            for slot in self.slots.values():
                for flight in slot.queue.values():
                    self.crew.interrupt(slot.number, flight.claim, InterruptKind.INTERRUPT)
        elif not draining.killed and now >= draining.give_up_at + INTERRUPT_GRACE_US:
            draining.killed = True
            for slot in self.slots.values():
                if slot.queue:
                    slot.ends_for = Cause.STOPPED
                    self._end_process(slot)

    def _alarms(self) -> Iterator[int]:
        """When something is to be done that nobody will call for."""
        if self._due_at is not None:
            yield self._due_at
        if self.stops.look_at is not None:
            yield self.stops.look_at
        if (self._has_news_for_store() or self._retries) and not self.is_displaced:
            yield self._retry_at
        if any(self._running_leased()):
            yield self.clock.mono_us() + max(0, self.lease.left_us())
        for slot in self.slots.values():
            if slot.kind is ChildKind.SYNC and len(slot.queue) > 1:
                yield slot.head_since + TAKE_BACK_US
            if slot.state is SlotState.EMPTY and slot.restart_at is not None and not self._is_closing:
                yield slot.restart_at
        if self._draining and not self._draining.killed:
            grace = INTERRUPT_GRACE_US if self._draining.interrupted else 0
            yield self._draining.give_up_at + grace


def _as_held(claim: Claim, slot: Slot) -> Held:
    role = "claimer" if claim.status is TaskStatus.CLAIMED else "runner"
    return Held(task_id=claim.id, fence=claim.fence, role=role, pid=slot.pid or 0)
