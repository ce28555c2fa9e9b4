"""What the verbs of the store write through, whichever database is behind it."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from everbeat.model.event import Event

Row = tuple[Any, ...]
Kind = tuple[str, str | None]
"""Queue and name of a task: what decides who can run it. None: whatever its name is."""


class RowRefused(Exception):
    """The database refuses what was to be written, and would refuse it again."""


class Transaction(Protocol):
    now: int
    """When it began: wall clock, microseconds UTC."""
    mono: int
    """The same moment by the clock that ages are measured with."""
    wakes: set[Kind]
    """What has become ready in it: once it is committed, workers that can run it are woken."""

    events: list[Event]
    """What was announced in it. Whoever listens is told of them when it is committed."""

    def run(self, sql: str, values: Any = ()) -> int:
        """How many rows were changed."""

    def many(self, sql: str, rows: Sequence[Any]) -> int:
        """How many rows were changed by all of them together."""

    def rows(self, sql: str, values: Any = ()) -> Iterator[Row]:
        """Read lazily: a caller that stops early has paid only for what it took."""

    def all(self, sql: str, values: Any = ()) -> list[Row]: ...

    def one(self, sql: str, values: Any = ()) -> Row | None: ...

    def part(self) -> AbstractContextManager[None]:
        """A part that is undone alone if it raises; RowRefused if what it tried can never be written."""
