"""Transactions with the store, one after the other: settle what ended, start what is ready, claim what fits; then hand
it out. No timers: whatever ended while the scribes were busy is in the next.

Several may be under way at once, each with what ended since the one before and with room that no other was offered. A
worker of whose processes none has anything hears nothing: it writes by itself, at once, as long as its store answers.

What ends in a workflow while a flush is under way that has its lock waits for the next, because that flush would wait.
So where many nodes end at once, one flush settles them, and another claims meanwhile, which needs no lock: otherwise
the fan of a thousand nodes would go through one connection, and the others stand still.

A store that can not be written changes nothing here: outcomes stay, processes go on, the flush is tried again (P8). A
row that it refuses is left out the second time, and so is what ended in a workflow if somebody's lock is in the way:
that is tried apart (PROTOCOL 35). After a flush that may have been committed without an answer, and once no other is
under way, the store is asked what is ours before anything is claimed (PROTOCOL 7).
"""

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

from everbeat.crashpoint import crash_point
from everbeat.decide.room import Promise, Room
from everbeat.errors import StoreUnavailable
from everbeat.model.task import Claim
from everbeat.run.books import Books
from everbeat.run.deadline import HeldLease
from everbeat.run.floor import Floor
from everbeat.run.keeper import Keeper
from everbeat.run.mandate import Mandate
from everbeat.run.meter import Meter
from everbeat.run.pacing import Pacing
from everbeat.run.scribes import Answer, Writing
from everbeat.run.tally import Tally
from everbeat.store.interface import Store
from everbeat.store.messages import Flush, Flushed
from everbeat.store.transaction import Locked, RowRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A flush that is under way."""

    number: int
    wanted: Flush
    room: Room
    promise: Promise
    """The room as it was when it was sent: the store fills it."""
    sent_at: int
    """By the clock of leases."""
    workflows: Set[str]
    """That it has the lock of, or waits for."""
    is_parted: bool
    """It settles many nodes, and does not look for tasks: another one may meanwhile."""


MANY = 64
"""So many nodes that have ended are settled by a flush that claims nothing."""


class Flushing:
    def __init__(
        self, *, store: Store, keeper: Keeper, books: Books, floor: Floor, pacing: Pacing, tally: Tally,
        lease: HeldLease, mandate: Mandate, scribes: Writing | None,
    ) -> None:  # fmt: skip
        self._store = store
        self._keeper = keeper
        self._books = books
        self._floor = floor
        self._pacing = pacing
        self._tally = tally
        self._lease = lease
        self._mandate = mandate
        self._scribes = scribes
        self._under_way: dict[int, Sent] = {}
        self._together: set[int] = set()
        """Those of them that met another."""
        self._begun = 0
        self._is_careful = False
        """A row was refused: the next flush goes row by row."""
        self.is_waiting = False
        """The dispatcher itself waits for an answer: it does not turn, and is not hung. Asked by the heartbeat, too."""
        self.meter: Meter | None = None

    # -- what others ask --------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Something is to be told, and can be."""
        return self.is_free and (self._books.has_news(self._locked) or bool(self._to_start()))

    @property
    def is_free(self) -> bool:
        """One more can be sent."""
        return self._scribes is None or self._scribes.is_free

    @property
    def begun(self) -> int:
        """How many there were, of which `done` and those before it are taken up. Asked by the heartbeat's thread."""
        return self._begun

    @property
    def done(self) -> int:
        return min(tuple(self._under_way), default=self._begun + 1) - 1

    # -- answers ----------------------------------------------------------------------------------------------------

    def take_up(self, now: int) -> None:
        """What the scribes have an answer to."""
        if self._scribes is None or not self._under_way:
            return
        answers = self._scribes.answers()
        if answers and all(isinstance(one, Flushed) and one.alive and not one.is_older for _, one in answers):
            self._flush_ahead({number for number, _ in answers}, now)
        for number, answer in answers:
            self._take_up(self._under_way[number], answer, now)

    def _flush_ahead(self, answered: set[int], now: int) -> None:
        """Before what was claimed by those that are `answered` is handed out: if there is room that they were not
        offered, the store goes on meanwhile with that and with what has ended."""
        is_plain = not (self._books.are_in_doubt or self._books.apart)
        has_some = self._books.has_endings and self._books.has_news(self._locked)
        if self._scribes is not None and is_plain and has_some and self._may_go_on(now):
            room = self._room(now)
            if not room.is_empty:
                sent = self._begin([], room, now, meets=self._under_way.keys() - answered, may_part=True)
                self._scribes.write(sent.number, sent.wanted)

    def _take_up(self, sent: Sent, answer: Answer, now: int) -> None:
        is_stored = isinstance(answer, Flushed) and not answer.is_older
        self._keeper.end(sent.number, is_stored=is_stored)
        if isinstance(answer, Flushed) and is_stored:
            self._go_on(sent, answer, now)
        else:
            self._books.put_back(sent.number)
            self._pacing.wake()
            self._heed_refusal(answer, now, was_careful=sent.wanted.row_by_row)
        del self._under_way[sent.number]
        self._together.discard(sent.number)

    def _go_on(self, sent: Sent, flushed: Flushed, now: int) -> None:
        if any(claim.exclusive_key is not None for claim in (*flushed.started, *flushed.claims)):
            self._lease.answered(sent.sent_at)
        self._pacing.answered()
        self._books.turn_page(sent.number, flushed)
        self._count(sent.wanted, flushed)
        if flushed.alive:
            was_alone = sent.number not in self._together
            self._pacing.looked(sent.room, flushed, now, was_offered=not sent.promise.is_empty, was_alone=was_alone)
            if sent.is_parted:
                self._pacing.wake()  # what follows from it is ready, and nobody has looked for it
            self._floor.launch(sent.wanted.starts, flushed.started, flushed.claims)
        else:
            self._mandate.is_fenced = True

    def _heed_refusal(self, answer: Answer, now: int, *, was_careful: bool = False) -> None:
        """Nothing was written, as far as is known. Who `was_careful` and is refused all the same has met no bad row,
        but a store that can not be asked."""
        match answer:
            case Flushed():
                self._mandate.is_displaced = True
            case RowRefused() if was_careful:
                self._failed(answer, now)
            case RowRefused():
                self._is_careful = True
            case Locked():
                if not self._books.set_apart(now):
                    self._failed(answer, now)
            case StoreUnavailable():
                self._books.are_in_doubt |= answer.maybe_stored
                self._failed(answer, now)

    def _failed(self, error: StoreUnavailable | RowRefused, now: int) -> None:
        self._keeper.is_away = True
        self._tally.failed_to_write(str(error), now)
        self._pacing.failed(now)

    def _count(self, wanted: Flush, flushed: Flushed) -> None:
        self._tally.count(wanted.endings, flushed.settlements)
        if self.meter is not None:
            self.meter.flushed(len(wanted.endings) + len(flushed.started) + len(flushed.claims))
        if wanted.endings:
            crash_point("finish.after_commit")

    # -- flushes ----------------------------------------------------------------------------------------------------

    def flush(self, now: int) -> None:
        if self._mandate.is_displaced:
            self._keeper.keep(self._books.endings)
            return
        if self._books.apart:
            self._keeper.write_down(self._books.apart.endings)
        if self._books.are_in_doubt and (self._under_way or not self._ask_what_is_ours(now)):
            return
        if self._books.apart:
            self._try_apart(now)
        while self._may_go_on(now) and self._turn_page(now):
            continue

    def _may_go_on(self, now: int) -> bool:
        return self.is_free and self._pacing.may_ask(now) and not self._mandate.is_displaced

    def _turn_page(self, now: int) -> bool:
        """Whether there may be more to send: it was refused at once, and may be tried again in another way, or it was
        parted from a look for tasks."""
        starts = self._to_start()
        room = self._room(now)
        is_alone = all(sent.is_parted for sent in self._under_way.values())  # two would look for ever
        looks = self._pacing.is_hungry and not room.is_empty and is_alone
        if not (self._books.has_news(self._locked) or starts or looks):
            if not self._under_way:
                self._pacing.rest()
                self._tally.store_answered()
            return False
        writes_itself = not (self._floor.is_busy or self._under_way or self._keeper.is_away)
        if self._scribes is not None and not writes_itself:
            sent = self._begin(starts, room, now, meets=self._under_way.keys(), may_part=True)
            self._scribes.write(sent.number, sent.wanted)
            return sent.is_parted
        sent = self._begin(starts, room, now, meets=self._under_way.keys())
        answer = self._answer(sent.wanted)
        self._take_up(sent, answer, now)
        return isinstance(answer, RowRefused | Locked)

    def _room(self, now: int) -> Room:
        return self._floor.room(now, [sent.promise for sent in self._under_way.values()])

    @property
    def _locked(self) -> Set[str]:
        """Workflows that a flush under way has the lock of, or waits for."""
        return frozenset[str]().union(*[sent.workflows for sent in self._under_way.values()])

    def _begin(self, starts: Sequence[Claim], room: Room, now: int, *, meets: Set[int], may_part: bool = False) -> Sent:
        """One more is under way, together with those that it `meets`."""
        self._begun += 1
        locked = self._locked
        is_parted = may_part and self._store.flushes_at_once > 1 and self._books.has_nodes(MANY, besides=locked)
        if is_parted:
            room = Room(frozenset(), frozenset(), None)
        wanted = self._books.page(self._begun, starts, room, row_by_row=self._is_careful, besides=locked)
        workflows = frozenset({one.claim.workflow_id for one in wanted.endings if one.claim.workflow_id is not None})
        sent = Sent(
            number=self._begun, wanted=wanted, room=room, promise=room.promise(), sent_at=self._lease.now_us(),
            workflows=workflows, is_parted=is_parted,
        )  # fmt: skip
        if not sent.promise.is_empty:
            self._pacing.offered()
        self._is_careful = False
        others = {number for number in meets if not self._under_way[number].is_parted}
        if others and not is_parted:
            self._together |= {sent.number, *others}
        self._under_way[sent.number] = sent
        self._keeper.begin(sent.number, wanted.endings, now)
        return sent

    def _answer(self, wanted: Flush) -> Answer:
        try:
            with self._waiting():
                return self._store.flush(wanted)
        except (StoreUnavailable, RowRefused) as error:
            return error

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """No store makes anybody wait without end."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False

    def _to_start(self) -> list[Claim]:
        """Those that are under way already do not start twice."""
        started = {id(claim) for sent in self._under_way.values() for claim in sent.wanted.starts}
        return [claim for claim in self._floor.slots.to_start() if id(claim) not in started]

    # -- what is not of every day -----------------------------------------------------------------------------------

    def _try_apart(self, now: int) -> None:
        """One workflow that somebody had locked, if it is its time."""
        workflow_id = self._books.apart.due(now)
        if workflow_id is None:
            return
        wanted = self._books.page_apart(workflow_id)
        answer = self._answer(wanted)
        if isinstance(answer, RowRefused):
            answer = self._answer(replace(wanted, row_by_row=True))
        if isinstance(answer, Locked | RowRefused):
            self._books.postpone(workflow_id, now, str(answer))
        elif isinstance(answer, Flushed) and not answer.is_older:
            self._keeper.settled(wanted.endings)
            self._books.turn_page_apart(workflow_id, answer)
            self._count(wanted, answer)
            self._pacing.wake()  # what follows from it is ready, and its tasks are wanted again
            self._mandate.is_fenced |= not answer.alive
        else:
            self._heed_refusal(answer, now)

    def _ask_what_is_ours(self, now: int) -> bool:
        """Before anything else is claimed (PROTOCOL 7). False: the store does not say."""
        try:
            with self._waiting():
                owned = self._store.surely_owned_by(self._books.worker_id)
                self._books.forget(self._store.hear_again(self._books.events))
            self._books.give_back_unknown(owned)
        except StoreUnavailable as error:
            self._failed(error, now)
        return not self._books.are_in_doubt
