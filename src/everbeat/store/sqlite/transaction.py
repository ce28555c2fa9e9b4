"""What the verbs write through, on SQLite: statements on the one connection that writes, or the one that reads.

Nothing is far away here, so what a transaction expects or leaves for its end is simply done.
"""

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import itemgetter
from typing import Any

from everbeat.clock import Clock
from everbeat.model.event import Event
from everbeat.model.flow import Named
from everbeat.store.sqlite.together import FEWEST, SHORT, are_in_a_row, in_few, recorded
from everbeat.store.transaction import NOT_ALL, Kind, Question, Row, RowRefused
from everbeat.store.verbs.kinds import leap

COPY_PAGES = 1024
WIDTHS = (512, 128, 16)
"""How many rows one INSERT adds, of many; the rest is a statement of its own."""
AT_ONCE = 128
"""So many ready tasks are read in one go, of which some may not be wanted."""
MOST_MARKS = 500
"""So many keys are named in one statement."""
NAMED = re.compile(r"(\S+) IN \(\{marks\}\)")
LAST = itemgetter(-1)
Progress = Callable[[int, int], None]
DEFINITE = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)
"""Errors of a statement, not of the store: the same again would fail again."""
REFUSED = (*DEFINITE, UnicodeError, OverflowError)
"""And of the values in it, which did not get as far as SQLite."""


class SQLiteTransaction:
    """`Transaction` on a connection that is in one."""

    __slots__ = ("_connection", "clock_id", "done", "events", "mono", "now", "results", "turns", "wakes")
    is_far = False

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection
        self.now = clock.wall_us()
        self.mono = clock.mono_us()
        self.clock_id = clock.id
        self.events: list[Event] = []
        self.wakes: set[Kind] = set()
        self.turns: set[str] = set()
        self.results: dict[str, dict[Named, bytes]] = {}
        self.done: set[str] = set()

    @property
    def moment(self) -> int:
        return self.now

    # Nothing is far away here: what is announced is done when it is asked for, and what may wait is done at once.

    def expect(self, *questions: Question) -> None:
        pass

    def expect_many(self, sql: str, rows: Sequence[Any]) -> None:
        pass

    def foresee(
        self, sql: str, queues: Collection[str] | None, names: Sequence[str], wants: Callable[[str], int]
    ) -> None:
        pass

    def soon(self, sql: str, rows: Sequence[Any], *, all_of_them: bool = False) -> None:
        if self.many(sql, rows) != len(rows) and all_of_them:
            raise RowRefused(NOT_ALL)

    def finally_many(self, sql: str, rows: Sequence[Any]) -> None:
        self.many(sql, rows)

    def finally_ask(self, sql: str, values: Sequence[Any], tell: Callable[[Row | None], None]) -> None:
        tell(self.one(sql, values))

    def undo(self) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")

    def run(self, sql: str, values: Any = ()) -> int:
        return self._connection.execute(sql, values).rowcount

    def many(self, sql: str, rows: Sequence[Any]) -> int:
        """How many rows were changed by all of them together."""
        if not rows:
            return 0
        said = in_few(sql, rows)
        if said is None:
            return self._connection.executemany(sql, rows).rowcount
        return sum(self._connection.execute(*one).rowcount for one in said)

    def insert(self, table: str, shared: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> int:
        """Many rows in one statement that binds what they share once take a third of the time of one for each."""
        common, kinds = list(shared.values()), len(columns)
        own = [value for row in zip(*columns.values(), strict=True) for value in row]
        added = at = 0
        while at < len(own):
            left = (len(own) - at) // kinds
            width = next((width for width in WIDTHS if width <= left), left)
            sql = _insertion(table, (*shared, *columns), len(common), width)
            added += self._connection.execute(sql, common + own[at : at + kinds * width]).rowcount
            at += kinds * width
        return added

    def insert_new(self, table: str, shared: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> bool:
        return self.insert(table, shared, columns) == len(next(iter(columns.values())))

    def rows(self, sql: str, values: Any = ()) -> Iterator[Row]:
        """Read lazily: a caller that stops early has paid only for what it took."""
        return self._connection.execute(sql, values)

    def kinds(self, queues: Collection[str] | None, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        return leap(self, queues, names)

    def ahead(self, sql: str, values: Sequence[Any], few: int) -> Iterator[Sequence[Row]]:
        """Read page by page in the cheapest way that works, and go on in the next from where it fails: short rows, then
        whole rows, both with texts decoded by SQLite's module itself, then whole rows with texts that are not UTF-8."""
        seen = 0
        for statement, texts in ((SHORT[sql], str), (sql, str), (sql, self._connection.text_factory)):
            rows = self._connection.execute(f"{statement} ORDER BY priority, seq LIMIT -1 OFFSET ?", (*values, seen))
            is_short = statement is not sql
            while (found := self._fetch(rows, few - seen if few > seen else few, texts, is_short=is_short)) is not None:
                if not found:
                    return
                yield found
                seen += len(found)

    def _fetch(self, rows: sqlite3.Cursor, few: int, texts: Callable[..., str], *, is_short: bool) -> list[Row] | None:
        """None: a text is not UTF-8, or a row can not be given short. The first short row is read alone: where
        thousands of a kind can not be short, no page of them is read in vain."""
        connection, tolerant = self._connection, self._connection.text_factory
        connection.text_factory = texts
        try:
            found = rows.fetchmany(1) if is_short else []
            left = max(1, min(few, AT_ONCE)) - len(found)
            if left and all(map(LAST, found)):  # to fetch none would be to fetch all
                found += rows.fetchmany(left)
        except sqlite3.OperationalError:
            return None
        finally:
            connection.text_factory = tolerant
        return None if is_short and not all(map(LAST, found)) else found

    def lock(self, name: str) -> None:
        """Writers of one file take turns: whoever is in a transaction holds every name."""

    def lock_tasks(self, seqs: Iterable[int]) -> None:
        """There is one writer at a time."""

    def among(self, sql: str, values: Sequence[Any], wanted: Sequence[Any]) -> list[Row]:
        return [row for text, keys in _naming(sql, wanted) for row in self.all(text, [*values, *keys])]

    def change_among(
        self, sql: str, values: Sequence[Any], wanted: Sequence[Any], *, all_of_them: bool = False
    ) -> None:
        changed = sum(self.run(text, [*values, *keys]) for text, keys in _naming(sql, wanted))
        if changed != len(wanted) and all_of_them:
            raise RowRefused(NOT_ALL)

    def change_and_record(self, change: str, records: Sequence[str], values: Mapping[str, Any]) -> int:
        for record in records:
            self.run(recorded(record, change), values)
        return self.run(change, values)

    def all(self, sql: str, values: Any = ()) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def one(self, sql: str, values: Any = ()) -> Row | None:
        row: Row | None = self._connection.execute(sql, values).fetchone()
        return row

    def copy_into(self, target: sqlite3.Connection, progress: Progress) -> None:
        """The whole database as this transaction sees it; `progress` is told pages left and pages in all. In a steady
        read nobody's commit makes it begin again."""
        self._connection.backup(
            target, pages=COPY_PAGES, progress=lambda _, left, total: progress(left, total), sleep=0
        )

    @contextmanager
    def part(self) -> Iterator[None]:
        """A part that is undone alone if it raises; RowRefused if what it tried can never be written."""
        self._connection.execute("SAVEPOINT part")
        announced = len(self.events)
        try:
            yield
        except BaseException as error:
            del self.events[announced:]
            self.results.clear()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO part")
                self._connection.execute("RELEASE part")
            if isinstance(error, (*REFUSED, ValueError)):
                raise RowRefused(f"{type(error).__name__}: {error}") from error
            raise
        self._connection.execute("RELEASE part")


def _naming(sql: str, wanted: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """The statement for all that is wanted, or for some of it at a time, each with the keys that it names."""
    if len(wanted) >= FEWEST and are_in_a_row(wanted):
        yield _from_to(sql), (wanted[0], wanted[-1])
        return
    for start in range(0, len(wanted), MOST_MARKS):
        some = wanted[start : start + MOST_MARKS]
        yield _with_marks(sql, len(some)), some


@lru_cache(maxsize=64)
def _from_to(sql: str) -> str:
    return NAMED.sub(r"\1 BETWEEN ? AND ?", sql)


@lru_cache(maxsize=4096)
def _with_marks(sql: str, count: int) -> str:
    return sql.format(marks=", ".join("?" * count))


@lru_cache(maxsize=64)
def _insertion(table: str, columns: tuple[str, ...], shared: int, width: int) -> str:
    """Marks without numbers: Python 3.12 before 3.12.4 warns of each value that is bound to one that has a number."""
    row = f"({', '.join('?' * (len(columns) - shared))})"
    common = f"(SELECT {', '.join('?' * shared)}), " if shared else ""
    rows = f"SELECT * FROM {common}(VALUES {', '.join([row] * width)}) WHERE true"
    if width == 1:
        rows = f"VALUES ({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) {rows} ON CONFLICT DO NOTHING"
