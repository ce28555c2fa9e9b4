"""The session lease: a lock that a worker holds for as long as its session lives (PROTOCOL 12).

The lock is an advisory one on the store and the worker's id, held on a connection of its own that carries the worker's
name. The server frees it within milliseconds when the worker's process is killed, and within seconds when its machine
or the way to it is gone, because both ends probe the connection. What follows from a lost one is decided elsewhere
(decide/suspect.py); here is the look at all of them, and the transaction that takes tasks from a suspect: it takes the
suspect's lock itself, so that it can not return meanwhile, and sees whether it has beaten.

Behind a pooler that gives each transaction another session, two clients can hold one lock and a lock outlives its
client: there it means nothing, and nobody holds one.
"""

from collections.abc import Sequence

import psycopg

from everbeat.errors import StoreUnavailable
from everbeat.model.recovery import Orphan, Settlement, Verdict
from everbeat.model.session import Look, Peer, Suspect
from everbeat.store.interface import Session, SessionsUnusable
from everbeat.store.lots import in_lots
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.hot import NOW
from everbeat.store.sql.recovering import Recovering, unsettled, workflow_of
from everbeat.store.transaction import Row
from everbeat.store.verbs import recovering

PREFIX = "everbeat:"
LONGEST_NAME = 63
"""Bytes of a session's name; PostgreSQL cuts off the rest."""

# Waits, for as long as every session of ours waits for a lock, for an earlier session of this worker that the server
# has not missed yet, or for somebody who takes tasks from it.
HOLD = "SELECT pg_advisory_lock(hashtextextended(%s, 0))"

# everbeat_workers_alive. Whoever takes tasks from a suspect has its lock for a moment: then it seems to be back, and is
# missed again. Names of sessions cost ten times as much, so they are asked for only when somebody is missing.
PEERS = f"""
SELECT id, beat_seq, {NOW}, hashtextextended(%s || id, 0) IN (
       SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
  FROM everbeat_workers WHERE status = 'alive'"""

# One gives locks, too, that nobody on its primary sees; and a session on a primary ends when that becomes one.
ON_STANDBY = "SELECT pg_is_in_recovery()"

NAMES = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"

# A beat or a flush of that worker waits until its tasks are taken, or is waited for.
UNBEATEN = "SELECT 1 FROM everbeat_workers WHERE id = ? AND status = 'alive' AND beat_seq = ? /*pg: FOR UPDATE */"

POOLED = "the server is reached through a pooler, whose sessions do not end with their clients'"


class _NoSuspect(Exception):
    """It has beaten, or has its session again."""


class PostgresSession:
    """A worker's lock, and the connection that holds it."""

    def __init__(self, database: PostgresDatabase, worker_id: str) -> None:
        self._database = database
        self._known: set[str] = set()
        """Who was seen holding a lock."""
        self._connection = database.connect(name_of(worker_id))
        try:
            if database.is_pooled(self._connection):
                raise SessionsUnusable(POOLED)
            self._ask(HOLD, lease_of(database.scope, worker_id))
            if self._ask(ON_STANDBY) == [(True,)]:
                raise StoreUnavailable(f"{database.location}: the server is a standby.", may_pass=True)
        except BaseException:
            self._connection.close()
            raise

    def ping(self) -> None:
        self._ask("SELECT 1")

    def look(self) -> Look:
        rows = self._ask(PEERS, lease_of(self._database.scope, ""))
        holders = {worker_id for worker_id, _, _, holds in rows if holds}
        self._known |= holders
        is_any_missing = any(worker_id in self._known and not holds for worker_id, _, _, holds in rows)
        names = {name for (name,) in self._ask(NAMES)} if is_any_missing else set()
        return Look(
            at_us=max((at for _, _, at, _ in rows), default=0),
            peers=tuple(
                Peer(
                    worker_id=worker_id,
                    beat_seq=beat_seq,
                    holds=holds,
                    is_connected=holds or name_of(worker_id) in names,
                )
                for worker_id, beat_seq, _, holds in rows
            ),
        )

    def close(self) -> None:
        self._connection.close()

    def _ask(self, sql: str, *values: str) -> list[Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except psycopg.Error as error:
            raise self._database.unavailable(error) from error


class Sessions(Recovering):
    """The part of a store that knows the sessions of workers."""

    database: PostgresDatabase

    def hold_session(self, worker_id: str) -> Session | None:
        return PostgresSession(self.database, worker_id)

    def session_holders(self) -> frozenset[str] | None:
        with self.database.session() as connection:
            rows = connection.execute(PEERS, (lease_of(self.database.scope, ""),)).fetchall()
        return frozenset(worker_id for worker_id, _, _, holds in rows if holds)

    def recover_suspected(
        self, suspect: Suspect, verdicts: Sequence[tuple[Orphan, Verdict]]
    ) -> list[Settlement] | None:
        def write(verdicts: Sequence[tuple[Orphan, Verdict]], hurries: bool) -> list[Settlement]:
            with self.database.write("recover", hurries=hurries) as tx:
                lease = f"lease/{suspect.worker_id}"
                if not tx.try_lock(lease) or tx.one(UNBEATEN, (suspect.worker_id, suspect.beat_seq)) is None:
                    raise _NoSuspect
                settlements = recovering.recover(tx, verdicts)
                again = self._note_recovered(tx, settlements, verdicts)
            self._tell(tx, again)
            self.bells.ring_owners([suspect.worker_id])
            return settlements

        try:
            return in_lots(verdicts, workflow_of, write, unsettled)
        except _NoSuspect:
            return None


def lease_of(scope: str, worker_id: str) -> str:
    return f"{scope}/lease/{worker_id}"


def name_of(worker_id: str) -> str:
    """The application_name of its session: as much of the end of its id as fits, because ids differ at their end,
    without the characters that the server would replace."""
    plain = "".join(letter if " " < letter < "\x7f" else "?" for letter in worker_id)
    return PREFIX + plain[-(LONGEST_NAME - len(PREFIX)) :]
