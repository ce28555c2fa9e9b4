"""The books of a worker: what it holds, how each ownership ended, and what the next flush is to tell the store.

An ownership ends in exactly one `Verdict`; it is held, and beaten for, until the flush that settles it is committed.
Its place in the journal is free from then on, and not before: whoever recovers us reads the begin mark there.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from everbeat.decide.room import Room
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import Verdict
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim, Outcome
from everbeat.run.apart import Apart
from everbeat.run.journal import Journal
from everbeat.run.refusals import Refusals
from everbeat.run.slot import Ownership, Slot
from everbeat.run.verdicts import give_back
from everbeat.store.messages import Ending, Flush, Flushed, Held, Report

KEY = attrgetter("claim.seq", "claim.fence")
Holdings = dict[Ownership, tuple[Claim, Slot]]


@dataclass(frozen=True, slots=True)
class Page:
    """What one flush tells."""

    endings: list[Ending]
    events: list[Event]
    reports: dict[tuple[int, int, bool], Report]


class Books:
    def __init__(self, worker_id: str, journal: Journal) -> None:
        self.worker_id = worker_id
        self.seen_beat = 0
        """The last beat that the store has acknowledged."""
        self.holdings: Holdings = {}
        self.are_in_doubt = False
        """A flush got no answer, and the store may have claimed for us what we do not know of."""
        self._stuck: Holdings = {}
        """What is ours and can not be ended, because the store takes nothing of it."""
        self._leased: Holdings = {}
        """What is held and has an exclusive key."""
        self._endings: list[Ending] = []
        self._kept = 0
        """So many of these are written down."""
        self._pages: dict[int, Page] = {}
        """Those that are under way, by the number of their flush."""
        self.apart = Apart()
        self._events: list[Event] = []
        self._reports: dict[tuple[int, int, bool], Report] = {}
        self._refusals = Refusals(worker_id)
        self._journal = journal

    # -- what is ours -----------------------------------------------------------------------------------------------

    def hold(self, claims: Iterable[Claim], slot: Slot) -> None:
        self.holdings.update([((claim.seq, claim.fence), (claim, slot)) for claim in claims])

    def lease(self, claim: Claim, slot: Slot) -> None:
        """A process has a task with an exclusive key."""
        self._leased[claim.seq, claim.fence] = claim, slot

    def held(self) -> list[Held]:
        """The claims to beat for, from the claim until their end is committed. Called by the heartbeat's thread."""
        return [_as_held(claim, slot) for claim, slot in (*self.holdings.values(), *self._stuck.values())]

    def leased(self) -> list[Held]:
        """Those with an exclusive key, once their process has them. Called by the thread that renews the lease."""
        return [_as_held(claim, slot) for claim, slot in tuple(self._leased.values())]

    def running_leased(self) -> Iterator[Slot]:
        """Slots whose process has a task with an exclusive key."""
        return (slot for key, (_, slot) in self._leased.items() if key in slot.queue)

    def give_back_unknown(self, owned: Sequence[Claim]) -> None:
        """All that the store says is ours, and nothing of ours is on its way to it: the doubt is over. What we do not
        hold was claimed by a flush whose answer was lost, and no process has seen it."""
        self.are_in_doubt = False
        held = {(one.task_id, one.fence) for one in self.held()}
        for claim in owned:
            if (claim.id, claim.fence) not in held:
                self.end(claim, give_back(claim, "the answer to its claim was lost"))

    @property
    def are_clear(self) -> bool:
        """Nothing is held, in doubt, under way or to be settled."""
        return not (self.holdings or self._endings or self._pages or self.apart or self.are_in_doubt)

    # -- what is to be told -----------------------------------------------------------------------------------------

    def end(
        self, claim: Claim, verdict: Verdict, *, outcome: Outcome | None = None, pid: int | None = None,
        entry: int | None = None,
    ) -> None:  # fmt: skip
        """An ownership ends."""
        self.end_all([Ending(claim, verdict, outcome, pid, entry)])

    def end_all(self, endings: list[Ending]) -> None:
        """Several ownerships end."""
        if self.apart:
            endings = [ending for ending in endings if not self.apart.admits(ending)]
        self._endings += endings

    def tell(self, name: str, facts: dict[str, Any], *, task_id: str | None = None) -> None:
        self._events.append(Event(name=name, task_id=task_id, worker_id=self.worker_id, facts=facts))

    @property
    def events(self) -> list[Event]:
        """Not told yet."""
        return list(self._events)

    def forget(self, events: Sequence[Event]) -> None:
        """These were told already."""
        self._events = [one for one in self._events if one not in events]

    def report(self, report: Report) -> None:
        """The last word of a run that is still going on."""
        self._reports[report.claim.seq, report.claim.fence, report.progress is None] = report

    @property
    def endings(self) -> list[Ending]:
        """Not settled yet, those that are under way or set apart among them."""
        pages = (*(page.endings for page in self._pages.values()), self._endings)
        return [*(ending for page in pages for ending in page), *self.apart.endings]

    def unkept(self) -> list[Ending]:
        """Those for the next flush that nobody was given yet to write down."""
        before, self._kept = self._kept, len(self._endings)
        return self._endings[before:]

    @property
    def has_unkept(self) -> bool:
        return self._kept < len(self._endings)

    @property
    def has_endings(self) -> bool:
        """For the next flush."""
        return bool(self._endings)

    def has_news(self, besides: Set[str] = frozenset()) -> bool:
        """For the next flush, of other workflows than these."""
        return bool(self._events or self._reports) or self._has_endings_of_others(besides)

    def _has_endings_of_others(self, workflows: Set[str]) -> bool:
        if not workflows:
            return bool(self._endings)
        return any(ending.claim.workflow_id not in workflows for ending in self._endings)

    def has_nodes(self, least: int, besides: Set[str]) -> bool:
        """Whether at least so many of the endings for the next flush are nodes of workflows other than `besides`."""
        if len(self._endings) < least:
            return False
        others = {None, *besides}
        return sum(ending.claim.workflow_id not in others for ending in self._endings) >= least

    # -- the flush --------------------------------------------------------------------------------------------------

    def page(
        self, number: int, starts: Sequence[Claim], room: Room, *, row_by_row: bool = False,
        besides: Set[str] = frozenset(),
    ) -> Flush:  # fmt: skip
        """Everything that is to be written now, except what is set apart and the endings in the workflows `besides`. It
        hurries if something is set apart: then other locks are likely."""
        mine, left = self._endings, list[Ending]()
        if besides:
            mine = [one for one in self._endings if one.claim.workflow_id not in besides]
            left = [one for one in self._endings if one.claim.workflow_id in besides]
        page = self._pages[number] = Page(mine, self._events, self._reports)
        self._endings, self._events, self._reports, self._kept = left, [], {}, 0
        hurries = bool(self.apart) and any(ending.claim.workflow_id for ending in page.endings)
        return Flush(
            worker_id=self.worker_id, endings=page.endings, starts=starts, room=room, events=page.events,
            reports=list(page.reports.values()), seen_beat=self.seen_beat, row_by_row=row_by_row, hurries=hurries,
        )  # fmt: skip

    def turn_page(self, number: int, flushed: Flushed) -> None:
        """It was committed: let go of what it settled. What the store has refused comes again, or is stuck."""
        self._let_go(self._pages.pop(number).endings, flushed)

    def put_back(self, number: int) -> None:
        """It was not, as far as is known: all of it is to be told again."""
        page, later = self._pages.pop(number), self._endings
        self._endings, self._kept = [], 0
        self.end_all([*page.endings, *later])
        self._events = page.events + self._events
        self._reports = page.reports | self._reports

    def set_apart(self, now: int) -> bool:
        """A lock was in the way of a page, probably that of a workflow: take its endings of workflows off it. False:
        there were none."""
        before, self._endings, self._kept = self._endings, self.apart.take(self._endings, now), 0
        return len(self._endings) < len(before)

    def page_apart(self, workflow_id: str) -> Flush:
        return Flush(
            worker_id=self.worker_id, endings=self.apart.of(workflow_id), seen_beat=self.seen_beat, hurries=True
        )

    def turn_page_apart(self, workflow_id: str, flushed: Flushed) -> None:
        self._let_go(self.apart.let_go(workflow_id), flushed)

    def postpone(self, workflow_id: str, now: int, reason: str) -> None:
        """It is still locked. Said once."""
        if self.apart.postpone(workflow_id, now):
            self.tell(event.WORKFLOW_LOCKED, {"workflow": workflow_id, "reason": reason})

    def _let_go(self, endings: list[Ending], flushed: Flushed) -> None:
        if flushed.refused:
            endings = self._set_aside(endings, flushed)
        let_go, leased = self.holdings.pop, self._leased
        for key in map(KEY, endings):
            let_go(key, None)
            if leased:
                leased.pop(key, None)
        self._journal.release(*[ending.entry for ending in endings if ending.entry is not None])

    def _set_aside(self, endings: Sequence[Ending], flushed: Flushed) -> list[Ending]:
        """What the store has refused; the rest is returned."""
        self._events += self._refusals.news(flushed)
        found = self._refusals.sort(endings, flushed)
        self.end_all(found.again)
        for ending in found.stuck:
            key = ending.claim.seq, ending.claim.fence
            self._stuck[key] = self.holdings.pop(key)
        return found.settled


def _as_held(claim: Claim, slot: Slot) -> Held:
    role = "claimer" if claim.status is TaskStatus.CLAIMED else "runner"
    return Held(task_id=claim.id, fence=claim.fence, role=role, pid=slot.pid or 0)
