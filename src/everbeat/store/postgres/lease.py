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

from everbeat.model.recovery import Orphan, Settlement, Verdict
from everbeat.model.session import Look, Peer, Suspect
from everbeat.store.interface import Session, SessionsUnusable
from everbeat.store.postgres.connection import NOW, PostgresDatabase
from everbeat.store.sql.base import Base
from everbeat.store.transaction import Row
from everbeat.store.verbs import recovering

PREFIX = "everbeat:"
LONGEST_NAME = 63
"""Bytes of a session's name; PostgreSQL cuts off the rest."""

# Waits, for as long as every session of ours waits for a lock, for an earlier session of this worker that the server
# has not missed yet, or for somebody who takes tasks from it.
HOLD = "SELECT pg_advisory_lock(hashtextextended(%s, 0))"

# Sessions of workers in this database, each with the keys of the locks that it holds.
SESSIONS = """
SELECT a.application_name, (l.classid::bigint << 32) | l.objid::bigint
  FROM pg_stat_activity a
  LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
 WHERE a.datname = current_database() AND starts_with(a.application_name, %s)"""

# everbeat_workers_alive
PEERS = f"SELECT id, beat_seq, hashtextextended(%s || id, 0), {NOW} FROM everbeat_workers WHERE status = 'alive'"

# A beat or a flush of that worker waits until its tasks are taken, or is waited for.
UNBEATEN = "SELECT 1 FROM everbeat_workers WHERE id = ? AND status = 'alive' AND beat_seq = ? /*pg: FOR UPDATE */"

POOLED = "a pooler gives each transaction another session of the server"


class PostgresSession:
    """A worker's lock, and the connection that holds it."""

    def __init__(self, database: PostgresDatabase, worker_id: str) -> None:
        self._database = database
        self._connection = database.connect(name_of(worker_id))
        try:
            if database.is_pooled(self._connection):
                raise SessionsUnusable(POOLED)
            self._ask(HOLD, lease_of(database.scope, worker_id))
        except BaseException:
            self._connection.close()
            raise

    def look(self) -> Look:
        sessions = self._ask(SESSIONS, PREFIX)
        peers = self._ask(PEERS, lease_of(self._database.scope, ""))
        named, locks = {name for name, _ in sessions}, set(sessions)
        return Look(
            at_us=max((at for *_, at in peers), default=0),
            peers=tuple(
                Peer(
                    worker_id=worker_id,
                    beat_seq=beat_seq,
                    holds=(name_of(worker_id), key) in locks,
                    is_connected=name_of(worker_id) in named,
                )
                for worker_id, beat_seq, key, _ in peers
            ),
        )

    def close(self) -> None:
        self._connection.close()

    def _ask(self, sql: str, value: str) -> list[Row]:
        try:
            return self._connection.execute(sql, (value,)).fetchall()
        except psycopg.Error as error:
            raise self._database.unavailable(error) from error


class Sessions(Base):
    """The part of a store that knows the sessions of workers."""

    database: PostgresDatabase

    def hold_session(self, worker_id: str) -> Session | None:
        return PostgresSession(self.database, worker_id)

    def recover_suspected(
        self, suspect: Suspect, verdicts: Sequence[tuple[Orphan, Verdict]], *, actor: str = "system/recovery"
    ) -> list[Settlement] | None:
        with self.database.write("recover") as tx:
            lease = f"lease/{suspect.worker_id}"
            if not tx.try_lock(lease) or tx.one(UNBEATEN, (suspect.worker_id, suspect.beat_seq)) is None:
                return None
            settlements = recovering.recover(tx, verdicts, actor=actor)
        ends = zip(settlements, verdicts, strict=True)
        self._announce_ends(tx, ((settlement, orphan.claim, verdict) for settlement, (orphan, verdict) in ends))
        self.bells.ring_owners([suspect.worker_id])
        return settlements


def lease_of(scope: str, worker_id: str) -> str:
    return f"{scope}/lease/{worker_id}"


def name_of(worker_id: str) -> str:
    """Of its session: as much of the end of its id as fits, because what tells ids apart is there; in the letters that
    the server leaves as they are."""
    plain = "".join(letter if " " < letter < "\x7f" else "?" for letter in worker_id)
    return PREFIX + plain[-(LONGEST_NAME - len(PREFIX)) :]
