"""Hears what the processes did, and enters it in the books: outcomes, reports, deaths.

After the death of a process: its complete outcomes count, what it had not read goes back unbilled, and for what it had
begun `recovery_for` decides (PROTOCOL 5, 20, 21, 23).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from everbeat.clock import Clock
from everbeat.crashpoint import crash_point
from everbeat.decide.finish import completed
from everbeat.decide.pace import Pace
from everbeat.model import event
from everbeat.model.recovery import Cause
from everbeat.model.state import Change
from everbeat.model.task import Outcome
from everbeat.run.books import Books
from everbeat.run.drain import Drain
from everbeat.run.floor import Floor
from everbeat.run.hands import Hands
from everbeat.run.meter import Meter
from everbeat.run.news import AppFacts, AppFailed, AppReady, ChildReady, Died, Finished, News, Reported
from everbeat.run.pacing import Pacing
from everbeat.run.processes import Processes
from everbeat.run.slot import Flight, Slot, SlotState
from everbeat.run.stops import Stops
from everbeat.run.verdicts import Verdicts, cause_of, give_back
from everbeat.run.wire import ChildKind
from everbeat.store.messages import Ending, Report

GATHER_US = 1_000


class Hearing:
    def __init__(
        self, *, crew: Hands, books: Books, floor: Floor, processes: Processes, stops: Stops,
        verdicts: Verdicts, drain: Drain, pacing: Pacing, pace: Pace, clock: Clock,
    ) -> None:  # fmt: skip
        self._crew = crew
        self._books = books
        self._floor = floor
        self._processes = processes
        self._slots = processes.slots
        self._stops = stops
        self._verdicts = verdicts
        self._drain = drain
        self._pacing = pacing
        self._pace = pace
        self._clock = clock
        self.meter: Meter | None = None
        self.trouble: str | None = None
        """Why a process did not come up, the last time that one did not."""
        self.elsewhere: Callable[[News], None] = lambda news: None
        """Told of processes that run no tasks."""

    def listen(self, now: int, *, gathers: bool = True) -> None:
        """Hear all there is. Slots that are about to end as well are worth a moment, if it `gathers` for a flush: one
        commit settles them all."""
        for news in self._crew.collect():
            self._hear(news, now)
        until = now + GATHER_US
        while gathers and self._is_worth_a_moment() and self._clock.mono_us() < until and self._crew.wait():
            for news in self._crew.collect():
                self._hear(news, now)

    def _is_worth_a_moment(self) -> bool:
        return self._books.has_endings and self._floor.ends_at_once()

    def _hear(self, news: News, now: int) -> None:
        if not isinstance(news, AppFailed | AppReady) and news.slot not in self._slots:
            self.elsewhere(news)
            return
        match news:
            case Finished():
                self._finish(self._slots[news.slot], news.outcomes, now)
            case Reported():
                self._take_reports(self._slots[news.slot], news.reports)
            case ChildReady():
                self._welcome(self._slots[news.slot], news.pid)
            case Died():
                self._bury(self._slots[news.slot], news, now)
            case AppFailed():
                self.trouble = news.message
                self._books.tell(event.APP_FAILED, {"kind": news.kind, "message": news.message})
            case AppReady():
                self._learn(news.facts)

    def _learn(self, facts: AppFacts) -> None:
        """A new fork server has imported the application as it is now."""
        sync_names, async_names = frozenset(facts.sync_names), frozenset(facts.async_names)
        self._slots.staffing = replace(self._slots.staffing, sync_names=sync_names, async_names=async_names)
        self._pacing.wake()

    def _welcome(self, slot: Slot, pid: int) -> None:
        slot.pid = pid
        if slot.state is SlotState.STARTING:
            slot.state = SlotState.READY
            self._pacing.wake()

    def _take_reports(self, slot: Slot, reports: Iterable[tuple[int, int, str | None]]) -> None:
        for seq, fence, progress in reports:
            flight = slot.queue.get((seq, fence))
            if flight is not None:
                self._books.report(Report(claim=flight.claim, pid=slot.pid or 0, progress=progress))

    def _finish(self, slot: Slot, outcomes: Iterable[tuple[int, int, int, Outcome]], now: int) -> None:
        self._take_outcomes(slot, outcomes, now)
        if self._processes.is_too_large(slot):
            self._floor.replace(slot, now)
        if not slot.queue and (slot.kind is ChildKind.OWN or slot.is_retiring):
            self._processes.let_go(slot)

    def _take_outcomes(self, slot: Slot, outcomes: Iterable[tuple[int, int, int, Outcome]], now: int) -> None:
        took: dict[str, list[int]] = {}
        ended: list[Ending] = []
        was_told, on_outcome = self._drain.has_interrupted, self._verdicts.on_outcome
        remove, watched, pid = slot.queue.pop, self._stops.watched, slot.pid
        for _, seq, fence, outcome in outcomes:
            flight = remove((seq, fence), None)
            if flight is None:
                continue
            if watched:
                self._stops.forget(slot, (seq, fence), now)
            crash_point("finish.received")
            claim = flight.claim
            if claim.name not in took:
                took[claim.name] = []
            took[claim.name].append(outcome.ended_at - outcome.began_at)
            is_result = outcome.error is None
            verdict = completed(outcome) if is_result else on_outcome(claim, outcome, pid, was_told=was_told)
            is_no_news = flight.is_taken and verdict.change is Change.CANCEL
            ended.append(Ending(claim, verdict, None if is_no_news else outcome, pid, flight.entry))
        if ended:
            slot.go_on(now)
            self._books.end_all(ended)
        for name, times in took.items():
            self._pace.saw(name, sum(times) / len(times), len(times))
            if self.meter is not None:
                for took_us in times:
                    self.meter.ran(name, took_us / 1e6)

    # -- death ------------------------------------------------------------------------------------------------------

    def _bury(self, slot: Slot, death: Died, now: int) -> None:
        self._take_outcomes(slot, death.outcomes, now)
        for key in death.unread:
            flight = slot.queue.pop(key, None)
            if flight is not None:
                verdict = give_back(flight.claim, "its process died before taking it")
                self._books.end(flight.claim, verdict, entry=flight.entry)
        evidence = self._verdicts.evidence(slot, death)
        self.trouble = self.trouble or (None if death.was_ready else evidence)
        begun = [flight for flight in slot.queue.values() if self._floor.has_begun(flight)]
        for flight in slot.queue.values():
            self._mourn(flight, slot, death, evidence, now, has_begun=flight in begun, begun=len(begun))
        if slot.waiting is not None:
            self._books.end(slot.waiting, self._verdicts.on_end(slot.waiting, Cause.NEVER_BEGAN, evidence))
        self._processes.bury(slot, death, now, begun=len(begun))

    def _mourn(
        self, flight: Flight, slot: Slot, death: Died, evidence: str, now: int, *, has_begun: bool, begun: int
    ) -> None:
        """A task that had not ended when its process died, one of so many that had `begun`."""
        watched = self._stops.forget(slot, flight.key, now)
        if watched is not None and watched.was_killed:
            verdict = self._verdicts.on_kill(watched, death.pid)
        else:
            verdict = self._verdicts.on_end(flight.claim, cause_of(slot, death, has_begun, begun), evidence)
        self._books.end(flight.claim, verdict, pid=death.pid, entry=flight.entry)
