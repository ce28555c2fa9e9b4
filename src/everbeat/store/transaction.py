"""What the verbs of the store write through, whichever database is behind it."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, overload

from everbeat.errors import StoreUnavailable
from everbeat.model.event import Event
from everbeat.model.flow import Named

Row = tuple[Any, ...]
Kind = tuple[str, str | None]
"""Queue and name of a task: what decides who can run it. None: whatever its name is."""


Question = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


class Database(Protocol):
    """Where the transactions of a store come from."""

    when_told: Callable[[Sequence[Event]], None] | None
    """Called with what a transaction announced, after its commit."""

    refused: tuple[type[Exception], ...]
    """Errors of a statement or of a value in it: the same again would fail again."""

    @property
    def is_same_file(self) -> bool:
        """False: what was opened has lost its name to another."""

    def empty_log(self) -> None:
        """Nothing that was deleted or blanked is left in what the database keeps beside its tables."""

    def write(
        self, point: str | None = None, *, wipe: bool = False, hurries: bool = False
    ) -> AbstractContextManager["Transaction"]:
        """Committed at the end of the block, rolled back if it raises. `point` names crash points. `wipe`: what it
        deletes or blanks is overwritten, where the database can do that. `hurries`: where others may have locked a row,
        it does not wait long for it."""

    def read(self, *, steady: bool = False) -> AbstractContextManager["Transaction"]:
        """`steady`: all of it sees one moment."""


class Columns(Sequence[Row]):
    """Rows that are kept as columns, because that is how thousands of them are written."""

    __slots__ = ("columns",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, *columns: Sequence[Any]) -> None:
        self.columns = columns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and self.columns == other.columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Row]:
        return zip(*self.columns, strict=True)

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> "Columns": ...

    def __getitem__(self, at: int | slice) -> "Row | Columns":
        parts = [column[at] for column in self.columns]
        return Columns(*parts) if isinstance(at, slice) else tuple(parts)


def columns_of(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    return rows.columns if isinstance(rows, Columns) else [*zip(*rows, strict=True)]


class RowRefused(ValueError):
    """The database refuses what was to be written, and would refuse it again. A sender sees it whose key has
    characters that the encoding of the database lacks."""


class Locked(StoreUnavailable):
    """Somebody else has locked what was to be written, for longer than we wait, or until he gets what we have locked.
    Nothing was changed."""


class Deadlock(Locked):
    """Others wanted what we had locked, and we what they had. They go on now: the same again may find it free."""


class TurnTaken(StoreUnavailable):
    """Somebody stands in front of the store and does not move on, and this may not be done beside it. Writing may."""


NOT_ALL = "rows that were to be changed are not what they should be"


class Transaction(Protocol):
    @property
    def now(self) -> int:
        """When it began: wall clock, microseconds UTC."""

    @property
    def moment(self) -> int | None:
        """`now`, or None while it is not known without asking the database: a statement that is given None for a time
        takes the database's own."""

    @property
    def mono(self) -> int:
        """The same moment by the clock that ages are measured with."""

    @property
    def clock_id(self) -> str:
        """Which clock that is: an age by another one is not known."""

    wakes: set[Kind]
    """What has become ready in it: once it is committed, workers that can run it are woken."""

    turns: set[str]
    """Exclusive keys that are to be handed over before it is committed, all together."""

    results: dict[str, dict[Named, bytes]]
    """Of nodes, by workflow, as far as they were read in it: under the lock of the workflow they do not change."""

    events: list[Event]
    """What was announced in it. Whoever listens is told of them when it is committed."""
    done: set[str]
    """Ids of workflows and tasks that have ended in it: once it is committed, those that wait for them are woken."""

    is_far: bool
    """Whether it is worth saying beforehand what will be asked and changed: the database is another process."""

    def expect(self, *questions: Question) -> None:
        """These will be asked, and nothing that is written before changes their answers. A database far away answers
        them together with what is asked first."""

    def expect_many(self, sql: str, rows: Sequence[Any]) -> None:
        """These will be changed next, by `many`."""

    def foresee(
        self, sql: str, queues: Collection[str] | None, names: Sequence[str], wants: Callable[[str], int]
    ) -> None:
        """Next, `kinds` will be called with these queues and names, then `ahead` for the first tasks of each kind:
        `wants` says how many of a name. What is changed in between is seen all the same."""

    def run(self, sql: str, values: Any = ()) -> int:
        """How many rows were changed."""

    def soon(self, sql: str, rows: Sequence[Any], *, all_of_them: bool = False) -> None:
        """Change these before anything else is asked, and with the commit at the latest: a database far away gets them
        together with the next question. `all_of_them`: RowRefused, as late as that, if not each was there to change."""

    def finally_many(self, sql: str, rows: Sequence[Any]) -> None:
        """Change these at the end, together with the commit. Nobody asks how many, and nobody reads them before."""

    def finally_ask(self, sql: str, values: Sequence[Any], tell: Callable[[Row | None], None]) -> None:
        """Ask after all that is changed at the end; the first row is told before the commit is known to others."""

    def undo(self) -> None:
        """Nothing of what was changed counts."""

    def many(self, sql: str, rows: Sequence[Any]) -> int:
        """How many rows were changed by all of them together."""

    def insert(self, table: str, shared: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> int:
        """Add rows that have some values in common, in their order; how many. What is there already is left alone."""

    def insert_new(self, table: str, shared: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> bool:
        """The same for rows none of which is there. False: one is, and this transaction is not to be committed."""

    def rows(self, sql: str, values: Any = ()) -> Iterator[Row]:
        """Read lazily: a caller that stops early has paid only for what it took."""

    def kinds(self, queues: Collection[str] | None, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Queue and name of ready tasks, of those that are asked for (None: any queue), in order."""

    def ahead(self, sql: str, values: Sequence[Any], few: int) -> Iterator[Sequence[Row]]:
        """The tasks that this finds and that nobody else is about to take, by priority and seq (the first two columns),
        a page at a time. About `few` are wanted; a page is read only when it is asked for. The rows of a page of
        `claiming.READY` may all be short (see `unsound.SHORT`)."""

    def lock(self, name: str) -> None:
        """Whoever else wants this name waits until the end of this transaction."""

    def lock_tasks(self, seqs: Iterable[int]) -> None:
        """The same for rows of tasks. To be called before several tasks are changed one after the other: everybody
        locks them in one order, so that no two transactions wait for each other."""

    def among(self, sql: str, values: Sequence[Any], wanted: Sequence[Any]) -> list[Row]:
        """All that a statement with `IN ({marks})` finds, after these values, for any number of those wanted."""

    def change_among(
        self, sql: str, values: Sequence[Any], wanted: Sequence[Any], *, all_of_them: bool = False
    ) -> None:
        """Change them, `soon`."""

    def change_and_record(self, change: str, records: Sequence[str], values: Mapping[str, Any]) -> int:
        """Change tasks and add records of each of them; how many tasks. `records` are INSERTs that select from
        `changed`: only columns that the change returns and does not alter."""

    def all(self, sql: str, values: Any = ()) -> list[Row]: ...

    def one(self, sql: str, values: Any = ()) -> Row | None: ...

    def part(self) -> AbstractContextManager[None]:
        """A part that is undone alone if it raises; RowRefused if what it tried can never be written."""
