"""Real verbs of a real store, in threads of their own, that stop before each statement until they are told to go on.

Each session has a store of its own, so a connection of its own. The scheduler moves one session at a time and waits
until it stands before its next statement, has ended, or waits for a lock of another one: PostgreSQL says which.
Statements that the code sends in one go are taken apart: the server runs them one by one, and others come between.

SQLite has one writer at a time (BEGIN IMMEDIATE): a session stops before each transaction there, not within.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from everbeat.store.postgres import connection as postgres
from everbeat.store.postgres.batch import OneByOne, Talk
from everbeat.store.postgres.limited import LimitedConnection
from everbeat.store.sqlite.connection import SQLiteDatabase
from everbeat.store.transaction import Row

Deed = Callable[[], Any]
PATIENCE = 20.0
LOOK = 0.002
"""How long a session may take before somebody asks whether it waits for a lock."""
BLOCKED = "SELECT pg_blocking_pids(%s) && %s::int[]"
TABLES = re.compile(r"everbeat_\w+")
LOCKS = re.compile(r"\b(FOR (UPDATE|SHARE|KEY SHARE|NO KEY UPDATE)|INSERT|UPDATE|DELETE)\b|pg_\w*advisory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a session is about to do. Two steps of different sessions that are independent may change places."""

    text: str
    ends: bool
    """Others see what it did, and have its locks."""
    locks: frozenset[str] = frozenset()

    def is_independent_of(self, other: "Step") -> bool:
        return not self.ends and not other.ends and not self.locks & other.locks

    def __str__(self) -> str:
        return " ".join(self.text.split())[:110]


BEGINNING = Step(text="begin", ends=False)
TRANSACTION = Step(text="a transaction", ends=True)


@dataclass(slots=True)
class Session:
    deed: Deed
    backend: int | None = None
    step: Step = BEGINNING
    has_ended: bool = False
    is_blocked: bool = False
    result: Any = None
    error: BaseException | None = None
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stands: threading.Event = field(default_factory=threading.Event)
    is_free: bool = False
    """It stops no more."""

    def run(self) -> None:
        _mine.session = self
        self.stop_before(BEGINNING)
        try:
            self.result = self.deed()
        except BaseException as error:  # noqa: BLE001 - told by whoever looks at the session
            self.error = error
        self.has_ended = True
        self.stands.set()

    def stop_before(self, step: Step) -> None:
        if not self.is_free:
            self.step = step
            self.stands.set()
            self.go.acquire()

    @property
    def can_move(self) -> bool:
        return not self.has_ended and not self.is_blocked


class Mine(threading.local):
    session: Session | None = None


_mine = Mine()


class Stage:
    """Moves sessions. `control` asks PostgreSQL who waits for whom; without it nobody can."""

    def __init__(self, deeds: Mapping[str, Deed], control: psycopg.Connection[Row] | None) -> None:
        self.sessions = {name: Session(deed) for name, deed in deeds.items()}
        self.trace: list[str] = []
        self.is_deadlocked = False
        """Every session that has not ended waits for another one. PostgreSQL ends one of them after a while."""
        self._control = control
        self._threads = [threading.Thread(target=one.run, daemon=True) for one in self.sessions.values()]
        for thread in self._threads:
            thread.start()
        self._until_all_stand()

    def choices(self) -> dict[str, Step]:
        """Who can move, and what would be done."""
        found = {name: session.step for name, session in self.sessions.items() if session.can_move}
        self.is_deadlocked = not found and not all(session.has_ended for session in self.sessions.values())
        return found

    def move(self, name: str) -> None:
        session = self.sessions[name]
        self.trace.append(f"{name:>10}  {session.step}")
        session.stands.clear()
        session.go.release()
        self._until_all_stand()
        if session.is_blocked:
            self.trace[-1] += "  ... waits"

    def finish(self) -> None:
        """Let everybody run, in whatever order."""
        for session in self.sessions.values():
            session.is_free = True
            session.go.release()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _until_all_stand(self) -> None:
        """Those who wait for a lock may have got it by what another one did: nothing is settled until all stand still
        in one look."""
        for _ in range(round(PATIENCE / LOOK)):
            moving = [session for session in self.sessions.values() if not session.stands.is_set()]
            if all(self._waits(session) for session in moving) and not any(one.stands.is_set() for one in moving):
                for session in self.sessions.values():
                    session.is_blocked = session in moving
                return
        raise TimeoutError("a session neither goes on nor waits for a lock")

    def _waits(self, session: Session) -> bool:
        if session.stands.wait(LOOK) or self._control is None or session.backend is None:
            return False
        others = [one.backend for one in self.sessions.values() if one.backend is not None]
        row = self._control.execute(BLOCKED, (session.backend, others)).fetchone()
        return row is not None and bool(row[0])


class SteppedCursor(psycopg.Cursor[Row]):
    def execute(self, query: Any, *args: Any, **options: Any) -> "SteppedCursor":
        _stop_before(self.connection, query)
        super().execute(query, *args, **options)
        return self

    def executemany(self, query: Any, *args: Any, **options: Any) -> None:
        _stop_before(self.connection, query)
        super().executemany(query, *args, **options)


class SteppedConnection(LimitedConnection):
    def cursor(self, *args: Any, **options: Any) -> Any:
        return SteppedCursor(self)

    def together(self) -> Talk:
        return OneByOne(self.execute)


def _stop_before(connection: psycopg.Connection[Any], query: Any) -> None:
    session, text = _mine.session, str(query)
    if session is None or not (text == "COMMIT" or "everbeat_" in text or "advisory" in text):
        return
    session.backend = connection.info.backend_pid
    is_alone = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    locks = frozenset(TABLES.findall(text) or ["advisory"]) if LOCKS.search(text) else frozenset[str]()
    session.stop_before(Step(text=text, ends=text == "COMMIT" or (is_alone and bool(locks)), locks=locks))


@contextmanager
def stepped() -> Iterator[None]:
    """Stores that are opened here can be moved step by step."""

    def stopping(usual: Callable[..., Any]) -> Callable[..., Any]:
        def first_stop(*args: Any, **options: Any) -> Any:
            if _mine.session is not None:
                _mine.session.stop_before(TRANSACTION)
            return usual(*args, **options)

        return first_stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "LimitedConnection", SteppedConnection)
        patch.setattr(SQLiteDatabase, "write", stopping(SQLiteDatabase.write))
        patch.setattr(SQLiteDatabase, "read", stopping(SQLiteDatabase.read))
        for limit in ("lock_timeout", "idle_in_transaction_session_timeout"):
            patch.setitem(postgres.LIMITS, limit, "60s")  # who stands still does not count
        yield
