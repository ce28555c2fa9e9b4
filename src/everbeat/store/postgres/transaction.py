"""A transaction on PostgreSQL, in as few round trips as it can do with: each costs what a dozen statements cost.

* It begins with its first statement, not before.
* What a verb says that it will ask (`expect`), change (`expect_many`) or look for (`foresee`) is not sent until the
  first answer is needed, and then all of it together.
* What is to be changed `soon` goes with the next question, and with the commit at the latest.
* What nobody waits for (`finally_many`, `finally_ask`) goes with the commit.

A look for ready tasks may be a short one (past.py). What this transaction itself has made ready is found all the same.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg

from everbeat.clock import Clock
from everbeat.model.event import Event
from everbeat.model.flow import Named
from everbeat.store.postgres import copying, statements
from everbeat.store.postgres.arrays import KINDS as ARRAYS
from everbeat.store.postgres.batch import Answer, Talk
from everbeat.store.postgres.dialect import bind, translate
from everbeat.store.postgres.hot import COLUMNS, LOOK, LOOKED, NEWEST, NOW, OTHERWISE, TYPES
from everbeat.store.postgres.limited import LimitedConnection
from everbeat.store.postgres.past import Look, Past, Place, Seen, TaskKind
from everbeat.store.postgres.trouble import REFUSED
from everbeat.store.transaction import Kind, Question, Row, RowRefused
from everbeat.store.verbs import claiming, owning, settling

Connection = LimitedConnection
Saying = Callable[[Talk], Callable[[], None]]
"""Says something to the server; what it returns is to be called when the answers are there."""

CLOCK_ID = "database"
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
LOCK_TASKS = "SELECT 1 FROM everbeat_tasks WHERE seq = ANY(%s) ORDER BY seq FOR UPDATE"
TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
NOT_SAID = -1
TASKS = "everbeat_tasks"
"""What was foreseen of them is no longer known when a statement that names them was sent."""
STAY = frozenset({settling.COMPLETE, claiming.LAUNCH, claiming.CLAIM, owning.PROGRESS, LOCK_TASKS})
"""Changes of tasks that make none of them ready."""
AT_ONCE = 128
"""So many rows of a page are given at a time: they are looked at together, and only where all of them are plain by
columns."""
MOST_LIKELY = 4
"""So many kinds of tasks are looked for unasked."""


@dataclass(slots=True)
class Memory:
    """What the last claims that found anything found: the next will find the same, most of the time. Never more than a
    guess."""

    kinds: dict[tuple[Collection[str] | None, tuple[str, ...]], list[tuple[str, str]]] = field(default_factory=dict)
    """By what was asked for."""
    past: Past = field(default_factory=Past)


@dataclass(slots=True)
class Looking:
    """A look for ready tasks, and what it has come to."""

    look: Look
    fresh: dict[TaskKind, Place] = field(default_factory=dict)
    """The first new task of each kind, if it is a short one."""
    kinds: list[TaskKind] = field(default_factory=list)
    found: dict[TaskKind, Place | None] = field(default_factory=dict)
    """The first task of each kind that was read, if there was one."""

    @property
    def left(self) -> dict[TaskKind, Place]:
        """Where tasks may still be. Of some kinds none were read, because there was no room for them."""
        unread = {kind: self.look.left.get(kind, statements.FIRST) for kind in self.kinds if kind not in self.found}
        return unread | {kind: place for kind, place in self.found.items() if place is not None}


@dataclass(slots=True)
class Foreseen:
    """What was looked for unasked."""

    kinds: list[tuple[str, str]]
    pages: dict[tuple[str, tuple[Any, ...], int], list[Row]]


class PostgresTransaction:
    """`Transaction` on a connection; `begin` is what it begins with, None if it is not to, or has begun already."""

    is_far = True

    def __init__(
        self, connection: Connection, scope: str, *, begin: Sequence[str] | None = None, clock: Clock | None = None,
        memory: Memory | None = None,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._scope = scope
        self._begin = begin
        self._clock = clock
        self._memory = memory or Memory()
        self._known: tuple[int, int, str] | None = None
        self._moment: int | None = NOT_SAID
        self.events: list[Event] = []
        self.wakes: set[Kind] = set()
        self.turns: set[str] = set()
        self.results: dict[str, dict[Named, bytes]] = {}
        self.done: set[str] = set()
        self._is_undone = False
        self._questions: list[Question] = []
        """To be sent with the next statement, and then what is `_expected`: each says what to do with its answer."""
        self._expected: list[Saying] = []
        self._is_checked = False
        """What becomes of what is expected to be changed must be known before the commit."""
        self._answers: dict[Question, list[Row]] = {}
        self._counts: dict[str, tuple[Sequence[Any], int]] = {}
        self._foreseen: Foreseen | None = None
        self._looking: Looking | None = None
        self._newest: int | None = None
        self._has_moved_tasks = False
        """It may have made some ready that were there before."""
        self._last: list[Saying] = []

    # -- time -------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self._read_clock()[0]

    @property
    def mono(self) -> int:
        return self._read_clock()[1]

    @property
    def clock_id(self) -> str:
        return self._read_clock()[2]

    @property
    def moment(self) -> int | None:
        """One answer for the whole transaction: what is expected and what is asked must be the same."""
        if self._moment == NOT_SAID:
            self._moment = None if self._known is None and self._clock is None else self.now
        return self._moment

    def _read_clock(self) -> tuple[int, int, str]:
        if self._known is None and self._clock is not None:
            self._known = self._clock.wall_us(), self._clock.mono_us(), self._clock.id
        if self._known is None:
            self._send_expected()
        if self._known is None:
            self._learn_time(statements.first(self._execute(f"SELECT {NOW}", None)))
        assert self._known is not None
        return self._known

    def _learn_time(self, now: int) -> None:
        if self._clock is None:
            self._known = now, now, CLOCK_ID

    # -- in advance -------------------------------------------------------------------------------------------------

    def expect(self, *questions: Question) -> None:
        self._questions += questions

    def _asked(self) -> list[Saying]:
        """The questions, as few statements."""
        questions, self._questions = self._questions, []
        looked = [question for question in questions if question[0] in LOOKED]
        if tuple(sql for sql, _ in looked) != LOOKED:
            time = [self._ask_time] if questions and self._known is None and self._clock is None else []
            return [*time, *(self._asking(question) for question in questions)]
        others = [self._asking(question) for question in questions if question not in looked]
        return [lambda talk: self._look_around(talk, looked), *others]

    def _look_around(self, talk: Talk, looked: list[Question]) -> Callable[[], None]:
        standing, next_due = looked
        cursor = talk.execute(LOOK, standing[1])

        def learn() -> None:
            ((now, status, beat_seq, due_at, self._newest),) = cursor.fetchall()
            self._learn_time(now)
            self._answers[standing] = [] if status is None else [(status, beat_seq)]
            self._answers[next_due] = [(due_at,)]

        return learn

    def _ask_time(self, talk: Talk) -> Callable[[], None]:
        cursor = talk.execute(f"SELECT {NOW}")
        return lambda: self._learn_time(statements.first(cursor))

    def _asking(self, question: Question) -> Saying:
        def ask(talk: Talk) -> Callable[[], None]:
            cursor = talk.execute(*statements.bound(*question))
            return lambda: self._answers.update({question: cursor.fetchall()})

        return ask

    def expect_many(self, sql: str, rows: Sequence[Any]) -> None:
        def change(talk: Talk) -> Callable[[], None]:
            cursor = statements.many(talk, sql, rows)
            return lambda: self._counts.update({sql: (rows, cursor.rowcount)})

        if rows and sql in TYPES:
            self._expected.append(change)

    def soon(self, sql: str, rows: Sequence[Any], *, all_of_them: bool = False) -> None:
        def change(talk: Talk) -> Callable[[], None]:
            cursor = statements.many(talk, sql, rows)
            return partial(statements.expect_all, cursor, len(rows)) if all_of_them else statements.nothing

        self._change(sql, change if rows else None, is_checked=all_of_them)

    def _change(self, sql: str, change: Saying | None, *, is_checked: bool = False) -> None:
        if change is not None:
            self._forget_foreseen(sql)
            self._expected.append(change)
            self._is_checked |= is_checked

    def _forget_foreseen(self, sql: str) -> None:
        """If it may be no longer so."""
        if TASKS in sql:
            self._foreseen = None
            self._has_moved_tasks |= sql not in STAY

    def foresee(
        self, sql: str, queues: Collection[str] | None, names: Sequence[str], wants: Callable[[str], int]
    ) -> None:
        likely = self._memory.kinds.get((queues, tuple(names)))
        if self._foreseen is None and likely and self._begun_look().look.is_whole:
            wanted = [(kind, wants(kind[1])) for kind in likely]
            self._expected.append(lambda talk: self._look(talk, sql, queues, names, wanted))

    def _look(
        self, talk: Talk, sql: str, queues: Collection[str] | None, names: Sequence[str],
        likely: list[tuple[tuple[str, str], int]],
    ) -> Callable[[], None]:  # fmt: skip
        kinds = statements.ask_kinds(talk, queues, names)
        pages = {(sql, kind, few): talk.execute(statements.page(sql), [*kind, few]) for kind, few in likely if few}

        def learn() -> None:
            self._foreseen = Foreseen(
                [(queue, name) for queue, name in kinds.fetchall()],
                {asked: cursor.fetchall() for asked, cursor in pages.items()},
            )

        return learn

    # -- the verbs --------------------------------------------------------------------------------------------------

    def run(self, sql: str, values: Any = ()) -> int:
        return self._changed(sql, self._execute(*bind(sql, values)))

    def _changed(self, sql: str, cursor: Answer) -> int:
        self._forget_foreseen(sql)
        return cursor.rowcount

    def many(self, sql: str, rows: Sequence[Any]) -> int:
        if not rows:
            return 0
        self._send_expected()
        expected = self._counts.pop(sql, None)
        if expected is not None and expected[0] == rows:
            return expected[1]
        return self._changed(sql, self._in_time(lambda talk: statements.many(talk, sql, rows)))

    def among(self, sql: str, values: Sequence[Any], wanted: Sequence[Any]) -> list[Row]:
        return self.all(sql, (*values, tuple(wanted))) if wanted else []

    def change_among(
        self, sql: str, values: Sequence[Any], wanted: Sequence[Any], *, all_of_them: bool = False
    ) -> None:
        def change(talk: Talk) -> Callable[[], None]:
            if all_of_them:
                talk.execute(statements.all_or_error(sql), [*values, statements.keys(wanted), len(wanted)])
            else:
                talk.execute(translate(sql), [*values, statements.keys(wanted)])
            return statements.nothing

        self._change(sql, change if wanted else None)

    def change_and_record(self, change: str, records: Sequence[str], values: Mapping[str, Any]) -> int:
        """No row is looked for twice."""
        changed = self._execute(statements.recorded(change, tuple(records)), values)
        self._foreseen = None
        return int(statements.first(changed))

    def insert(self, table: str, shared: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> int:
        sql = statements.insertion(table, tuple(shared), tuple(columns))
        own = [ARRAYS[COLUMNS.get(name, "text")](column) for name, column in columns.items()]
        return self._changed(sql, self._execute(sql, [*shared.values(), *own]))

    def insert_new(self, table: str, shared: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> bool:
        count = len(next(iter(columns.values())))
        if count < copying.FEWEST or not self._connection.takes_copies:
            return self.insert(table, shared, columns) == count
        self._send([])
        try:
            with self._connection.cursor().copy(copying.statement(table, shared, columns)) as copy:
                for piece in copying.content(shared, columns):
                    copy.write(piece)
        except psycopg.errors.UniqueViolation:
            return False
        self._foreseen = None
        return True

    def rows(self, sql: str, values: Any = ()) -> Iterator[Row]:
        return iter(self.all(sql, values))

    def kinds(self, queues: Collection[str] | None, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        if self._foreseen is None:
            self._send_expected()
        found = self._foreseen.kinds if self._foreseen is not None else self._ask_kinds(queues, names)
        self._begun_look().kinds = found
        if found:
            self._memory.kinds[queues, tuple(names)] = found[:MOST_LIKELY]
        return iter(found)

    def _begun_look(self) -> Looking:
        if self._looking is None or (self._has_moved_tasks and not self._looking.look.is_whole):
            self._looking = Looking(self._memory.past.look(whole=self._has_moved_tasks))
        return self._looking

    def _ask_kinds(self, queues: Collection[str] | None, names: Sequence[str]) -> list[TaskKind]:
        looking, newest = self._begun_look(), list[Answer]()
        since, left = looking.look.since, looking.look.left

        def ask(talk: Talk) -> Answer:
            if self._newest is None:
                newest.append(talk.execute(NEWEST))
            if since is None:
                return statements.ask_kinds(talk, queues, names)
            return statements.ask_fresh_kinds(talk, since, queues, names)

        found = self._in_time(ask).fetchall()
        if newest:
            self._newest = statements.first(newest[0])
        if since is None:
            return [(queue, name) for queue, name in found]
        looking.fresh = {(queue, name): (priority, seq) for queue, name, priority, seq in found}
        others = [kind for kind in left if kind[1] in names and (queues is None or kind[0] in queues)]
        return sorted({*looking.fresh, *others})

    @property
    def seen(self) -> tuple[Look, Seen] | None:
        """The look that it took, and what it has come to."""
        if self._looking is None or self._newest is None:
            return None
        return self._looking.look, Seen(self._newest, self._looking.left)

    def ahead(self, sql: str, values: Sequence[Any], few: int) -> Iterator[Sequence[Row]]:
        """What is read is locked until the end of the transaction, so not more than is wanted."""
        few, kind = max(few, 1), (values[0], values[1])
        looking = self._begun_look()
        for text, place in self._pages(sql, looking, kind):
            found = self._foreseen.pages.pop((sql, kind, few), None) if self._foreseen is not None else None
            if found is None:
                found = self._execute(text(sql), [*kind, *place, few]).fetchall()
            looking.found[kind] = looking.found.get(kind) or (found[0][:2] if found else None)
            while True:
                for at in range(0, len(found), AT_ONCE):
                    yield found[at : at + AT_ONCE]
                if len(found) < few:
                    break
                after = [*kind, *place, *found[-1][:2], few]
                found = self._execute(text(sql, statements.AFTER), after).fetchall()

    def _pages(
        self, sql: str, looking: Looking, kind: TaskKind
    ) -> Iterator[tuple[Callable[..., str], tuple[int, ...]]]:
        """Where tasks of a kind are to be read: statements, and values of theirs."""
        look, left, fresh = looking.look, looking.look.left.get(kind), looking.fresh.get(kind)
        if look.since is None:
            yield statements.page, ()
            return
        end = left or statements.NOWHERE
        if fresh is not None and fresh < end:
            yield statements.page_since, (*end, look.since)
        if left is not None:
            yield statements.page_from, left

    def lock(self, name: str) -> None:
        self._memory.kinds.clear()  # where names are locked before they are claimed from, nothing is locked unasked
        self._execute(LOCK, (f"{self._scope}/{name}",))

    def lock_tasks(self, seqs: Iterable[int]) -> None:
        """Before whatever is asked next, together with it."""
        wanted = ARRAYS["bigint"](list(seqs))

        def lock(talk: Talk) -> Callable[[], None]:
            talk.execute(LOCK_TASKS, (wanted,))
            return statements.nothing

        self._change(LOCK_TASKS, lock if wanted else None)

    def try_lock(self, name: str) -> bool:
        """Whether nobody else had it."""
        row = self._execute(TRY_LOCK, (f"{self._scope}/{name}",)).fetchone()
        return row is not None and bool(row[0])

    def all(self, sql: str, values: Any = ()) -> list[Row]:
        known = self._expected_answer(sql, values)
        return self._execute(*statements.bound(sql, values)).fetchall() if known is None else known

    def one(self, sql: str, values: Any = ()) -> Row | None:
        known = self._expected_answer(sql, values)
        if known is not None:
            return known[0] if known else None
        return self._execute(*bind(OTHERWISE.get(sql, sql), values)).fetchone()

    def _expected_answer(self, sql: str, values: Any) -> list[Row] | None:
        question = (sql, tuple(values))
        if question in self._questions:
            self._send_expected()
        return self._answers.pop(question, None)

    @contextmanager
    def part(self) -> Iterator[None]:
        if self._begin is not None or self._is_expecting:
            self._send([])
        announced = len(self.events)
        try:
            with self._connection.transaction():
                yield
                if self._expected:
                    self._send([])
        except BaseException as error:
            del self.events[announced:]
            self.results.clear()
            self._expected.clear()
            self._questions.clear()
            self._is_checked = False
            if isinstance(error, (*REFUSED, ValueError)):
                raise RowRefused(f"{type(error).__name__}: {error}") from error
            raise

    # -- the end ----------------------------------------------------------------------------------------------------

    def finally_many(self, sql: str, rows: Sequence[Any]) -> None:
        def change(talk: Talk) -> Callable[[], None]:
            statements.many(talk, sql, rows)
            return statements.nothing

        if rows:
            self._last.append(change)

    def finally_ask(self, sql: str, values: Sequence[Any], tell: Callable[[Row | None], None]) -> None:
        def ask(talk: Talk) -> Callable[[], None]:
            cursor = talk.execute(*bind(sql, values))
            return lambda: tell(cursor.fetchone())

        self._last.append(ask)

    def undo(self) -> None:
        self._is_undone = True

    def commit(self, behind: Sequence[Question] = ()) -> None:
        """What was left for the end goes with it, in one round trip; so do notifications `behind` it."""
        if self._is_checked and not self._is_undone:
            self._send([])
        if self._is_undone:
            self._connection.execute("ROLLBACK")
        elif self._last or self._expected or behind or self._begin is None:
            self._commit_with(behind)

    def _commit_with(self, behind: Sequence[Question]) -> None:
        committed: list[Answer] = []

        def commit(talk: Talk) -> Callable[[], None]:
            committed.append(talk.execute("COMMIT"))
            return statements.nothing

        def tell(talk: Talk) -> Callable[[], None]:
            statements.notify(talk, behind)
            return statements.nothing

        try:
            self._send([*self._last, commit, tell])
        except psycopg.Error:  # it is committed, and only those who wait for it were not told
            if not committed or committed[0].statusmessage != "COMMIT":
                raise

    # -- round trips ------------------------------------------------------------------------------------------------

    def _execute(self, sql: str, values: Any) -> Answer:
        return self._in_time(lambda talk: talk.execute(sql, values))

    def _in_time(self, execute: Callable[[Talk], Answer]) -> Answer:
        """After the beginning and what was expected, together with them."""
        found: list[Answer] = []

        def own(talk: Talk) -> Callable[[], None]:
            found.append(execute(talk))
            return statements.nothing

        self._send([own])
        return found[0]

    @property
    def _is_expecting(self) -> bool:
        return bool(self._questions or self._expected)

    def _send_expected(self) -> None:
        if self._is_expecting:
            self._send([])

    def _send(self, statements: Sequence[Saying]) -> None:
        expected, self._expected = [*self._asked(), *self._expected], []
        self._is_checked = False
        begin, self._begin = self._begin, None
        with self._connection.together() as talk:
            for said in begin or ():
                talk.execute(said)
            answers = [say(talk) for say in (*expected, *statements)]
        for answer in answers:
            answer()
