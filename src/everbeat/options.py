"""The options of one sending: when, where, as what, and inside which transaction. Checked when they are made."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from everbeat.config.checks import Seconds, in_seconds, to_seconds
from everbeat.ids import key_problem, name_problem

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
LONGEST_DELAY_SECONDS = 100 * 366 * 86_400
PRIORITIES = range(1, 101)


class WithCursor(Protocol):
    """A connection of sqlite3, psycopg or Django."""

    @property
    def cursor(self) -> Any: ...


class WithExecute(Protocol):
    """A connection or session of SQLAlchemy."""

    @property
    def execute(self) -> Any: ...


OwnConnection = WithCursor | WithExecute


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """None means the task's own setting, or nothing. ValueError for what can not be."""

    delay: Seconds | None = None
    run_at: datetime | None = None
    priority: int | None = None
    queue: str | None = None
    unique_key: str | None = None
    exclusive_key: str | None = None
    good_until: datetime | None = None
    id: str | None = None
    connection: OwnConnection | None = None

    def __post_init__(self) -> None:
        if self.delay is not None and self.run_at is not None:
            raise ValueError("give either delay or run_at, not both")
        if self.delay is not None:
            _require_delay(self.delay)
        if self.run_at is not None:
            _require_aware("run_at", self.run_at, "for seconds from now use delay")
        if self.priority is not None:
            raise_if(priority_problem(self.priority))
        if self.queue is not None:
            raise_if(name_problem(self.queue, "queue"))
        if self.unique_key is not None:
            raise_if(key_problem(self.unique_key, "unique_key"))
        if self.exclusive_key is not None:
            raise_if(key_problem(self.exclusive_key, "exclusive_key"))
        if self.good_until is not None:
            _require_aware("good_until", self.good_until, "such as datetime.now(UTC) + timedelta(hours=1)")
        if self.id is not None:
            raise_if(name_problem(self.id, "id"))
        if self.connection is not None:
            _require_connection(self.connection)
        if self.run_at is not None and self.good_until is not None and self.good_until <= self.run_at:
            raise ValueError(
                f"good_until {self.good_until.isoformat()} is not after run_at {self.run_at.isoformat()}, "
                f"so the task could never run"
            )

    @property
    def delay_us(self) -> int | None:
        return None if self.delay is None else round(to_seconds(self.delay) * 1_000_000)

    @property
    def run_at_us(self) -> int | None:
        return None if self.run_at is None else (self.run_at - EPOCH) // MICROSECOND

    @property
    def good_until_us(self) -> int | None:
        return None if self.good_until is None else (self.good_until - EPOCH) // MICROSECOND


PLAIN = SendOptions()


def priority_problem(value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and value in PRIORITIES:
        return None
    return f"priority must be a whole number from 1 (first) to 100 (last), not {value!r}"


def raise_if(problem: str | None) -> None:
    if problem is not None:
        raise ValueError(problem)


def _require_connection(connection: object) -> None:
    """Whether it is one of the store's own database is for the store to say, when something is sent."""
    if not (hasattr(connection, "execute") or hasattr(connection, "cursor")):
        kind = type(connection).__name__
        raise ValueError(f"connection must be an open connection (or SQLAlchemy session) to the store, not a {kind}")


def _require_delay(delay: Seconds) -> None:
    seconds = in_seconds(delay)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise ValueError(f"delay must be a number of seconds or a timedelta, not {delay!r}")
    if not 0 <= seconds <= LONGEST_DELAY_SECONDS:
        raise ValueError(f"delay must be from 0 to {LONGEST_DELAY_SECONDS} seconds, not {delay!r}")


def _require_aware(name: str, moment: datetime, advice: str) -> None:
    if not isinstance(moment, datetime):
        raise ValueError(f"{name} must be a datetime with a time zone, not {moment!r}; {advice}")
    if moment.utcoffset() is None:
        raise ValueError(
            f"{name} {moment.isoformat()} has no time zone, so it is not known which moment it means; "
            f"use datetime.now(UTC) + ..., or .astimezone()"
        )
