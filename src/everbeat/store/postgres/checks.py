"""What start-up and `db check` ask about a PostgreSQL store: are its indexes whole, as far as amcheck is there to
tell, and does the server serve us as it should. Its log and its repair are the server's own affair."""

import time
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg

from everbeat.model.integrity import Checkpoint, IntegrityResult
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.transaction import Connection
from everbeat.store.verbs import doubting

AMCHECK = """
SELECT extnamespace::regnamespace::text, has_schema_privilege(extnamespace, 'USAGE'), quote_ident(current_user)
  FROM pg_extension WHERE extname = 'amcheck'"""
INDEXES = """
SELECT c.oid::regclass::text, c.oid::bigint FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  JOIN pg_class t ON t.oid = i.indrelid JOIN pg_am a ON a.oid = c.relam
 WHERE t.relname LIKE 'everbeat\\_%%' AND t.relnamespace = quote_ident(current_schema())::regnamespace
   AND a.amname = 'btree'
 ORDER BY c.relpages"""
# By the schema it is in, which need not be ours.
CHECK_INDEX = "SELECT {amcheck}.bt_index_check(%s::bigint::oid::regclass, true)"
INVALID = """
SELECT c.oid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  JOIN pg_class t ON t.oid = i.indrelid
 WHERE t.relname LIKE 'everbeat\\_%%' AND t.relnamespace = quote_ident(current_schema())::regnamespace
   AND NOT i.indisvalid"""
OLDEST = """
SELECT pid, application_name, extract(epoch FROM clock_timestamp() - xact_start) FROM pg_stat_activity
 WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND datname = current_database()
 ORDER BY xact_start LIMIT 1"""
# What pg_stat_activity shows of a session to those who may not see it is only that it is there.
UNSEEN = """
SELECT count(*), quote_ident(current_user) FROM pg_stat_activity
 WHERE datname = current_database() AND NOT pg_has_role(usesysid, 'USAGE')
   AND NOT pg_has_role('pg_read_all_stats', 'USAGE')"""
QUEUE = """
SELECT pg_notification_queue_usage(), pid, application_name, datname
  FROM (SELECT 1) AS one LEFT JOIN LATERAL
       (SELECT pid, application_name, datname FROM pg_stat_activity
         WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
         ORDER BY xact_start LIMIT 1) AS oldest ON true"""
PREPARED = """
SELECT gid, extract(epoch FROM clock_timestamp() - prepared) FROM pg_prepared_xacts
 WHERE database = current_database() ORDER BY prepared LIMIT 1"""
# Not for its owner, unless it is forced on him, nor for those who may bypass it.
ROW_SECURITY = """
SELECT c.relname, quote_ident(current_user) FROM pg_class c
 WHERE c.relname LIKE 'everbeat\\_%%' AND c.relnamespace = quote_ident(current_schema())::regnamespace
   AND c.relkind = 'r' AND row_security_active(c.oid)
 ORDER BY 1"""
LIMIT = "SELECT set_config('statement_timeout', %s, true)"
OLD_SECONDS = 300
FULL = 0.5
TAKES_ALL = ("UTF8", "SQL_ASCII")
"""Encodings."""
NO_AMCHECK = "indexes were not checked: CREATE EXTENSION amcheck lets everbeat do it"


@dataclass(slots=True, kw_only=True)
class _Indexes:
    """What was found of them."""

    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = True


class Checks:
    database: PostgresDatabase

    def check_integrity(self, *, budget: float) -> IntegrityResult:
        began = time.monotonic()
        with self.database.session() as connection:
            errors = [f"index {name} is not valid" for (name,) in connection.execute(INVALID)]
            warnings = [
                *_old_transactions(connection),
                *_full_queue(connection),
                *_small_encoding(connection),
                *_hidden_rows(connection),
            ]
            notes = _unseen_transactions(connection)
            indexes = _check_indexes(connection, give_up=began + budget)
        errors += indexes.errors
        return IntegrityResult(
            passed=not errors, errors=errors, warnings=warnings, notes=notes + indexes.notes, complete=indexes.complete,
            duration=timedelta(seconds=time.monotonic() - began),
        )  # fmt: skip

    def contradictions(self) -> list[str]:
        with self.database.walk() as tx:
            return list(doubting.contradictions(tx))

    def oddities(self, *, scan: bool) -> list[str]:
        with self.database.walk() if scan else self.database.read() as tx:
            return list(doubting.oddities(tx, scan=scan))

    def repair(self, found: IntegrityResult) -> IntegrityResult:
        """Nothing here repairs a server's files behind its back."""
        return found

    def restore_log(self) -> str | None:
        return None

    def log_bytes(self) -> int:
        return 0

    def checkpoint(self) -> Checkpoint:
        return Checkpoint()


def _check_indexes(connection: Connection, *, give_up: float) -> _Indexes:
    amcheck = connection.execute(AMCHECK).fetchone()
    if amcheck is None:
        return _Indexes(notes=[NO_AMCHECK])
    schema, may_use_schema, user = amcheck
    found = _Indexes()
    for name, oid in connection.execute(INDEXES).fetchall():
        try:
            errors = _check_index(connection, CHECK_INDEX.format(amcheck=schema), name, oid, give_up - time.monotonic())
        except psycopg.errors.InsufficientPrivilege:  # it will not be granted for the next one either
            found.notes.append(_not_allowed(schema, user, may_use_schema=may_use_schema))
            return found
        if errors is None:
            found.complete = False
            return found
        found.errors += errors
    return found


def _check_index(connection: Connection, check: str, name: str, oid: int, seconds: float) -> list[str] | None:
    """None: it takes longer than that, or somebody has locked the table."""
    try:
        with connection.taking(max(0.0, seconds)), connection.transaction():
            connection.execute(LIMIT, (str(max(1, round(seconds * 1000))),))  # 0 would be no limit
            connection.execute(check, (oid,))
    except (psycopg.errors.IndexCorrupted, psycopg.errors.DataCorrupted) as error:
        return [f"index {name}: {str(error).splitlines()[0]}. REINDEX INDEX {name} makes it anew"]
    except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
        return None
    return []


def _not_allowed(schema: str, user: str, *, may_use_schema: bool) -> str:
    usage = "" if may_use_schema else f"GRANT USAGE ON SCHEMA {schema} TO {user}; "
    execute = f"GRANT EXECUTE ON FUNCTION {schema}.bt_index_check(regclass, boolean) TO {user}"
    return f"indexes were not checked: this user may not use amcheck. {usage}{execute} lets everbeat do it"


def _unseen_transactions(connection: Connection) -> list[str]:
    unseen, user = connection.execute(UNSEEN).fetchone() or (0, "")
    if not unseen:
        return []
    sessions = f"{unseen} session{'s' if unseen > 1 else ''} of other users"
    return [
        f"{sessions} could not be looked into, so an old transaction of theirs would not be named: "
        f"GRANT pg_read_all_stats TO {user} lets everbeat do it"
    ]


def _old_transactions(connection: Connection) -> list[str]:
    """The oldest one keeps dead rows from being removed, and claims read past them."""
    found: list[str] = []
    active, prepared = connection.execute(OLDEST).fetchone(), connection.execute(PREPARED).fetchone()
    if active is not None and active[2] >= OLD_SECONDS:
        pid, name, age = active
        found.append(
            f"a transaction of backend {pid} ({name or 'unnamed'}) is open since {age / 60:.0f} minutes: dead rows "
            f"pile up behind it and slow every claim. End it: SELECT pg_terminate_backend({pid})"
        )
    if prepared is not None and prepared[1] >= OLD_SECONDS:
        gid, age = prepared
        found.append(
            f"the prepared transaction {gid} is open since {age / 60:.0f} minutes: dead rows pile up behind it and "
            f"slow every claim. End it: COMMIT PREPARED or ROLLBACK PREPARED"
        )
    return found


def _full_queue(connection: Connection) -> list[str]:
    """All databases of a server share one queue of notifications."""
    row = connection.execute(QUEUE).fetchone()
    if row is None or row[0] < FULL:
        return []
    usage, pid, name, database = row
    said = (
        f"the server's queue of notifications is {usage * 100:.0f} % full, because a session that listens does not end "
        "its transaction: workers and those who wait for results look once a second, instead of being told"
    )
    if pid is None:
        return [said]
    oldest = f"the oldest transaction is that of backend {pid} ({name or 'unnamed'}, database {database})"
    return [f"{said}; {oldest}: SELECT pg_terminate_backend({pid})"]


def _small_encoding(connection: Connection) -> list[str]:
    """Arguments and results are bytes, but keys and errors are texts: a task whose error can not be stored has failed
    for that, whatever attempts it had left."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding is None or encoding in TAKES_ALL:
        return []
    refused = "keys and errors with characters that it lacks are refused"
    return [f"the encoding of the database is {encoding}: {refused}. Make a database with ENCODING 'UTF8' for everbeat"]


def _hidden_rows(connection: Connection) -> list[str]:
    """A row that a policy hides is no row: its task is claimed by nobody, and nobody can say why."""
    found = connection.execute(ROW_SECURITY).fetchall()
    if not found:
        return []
    tables, user = [name for name, _ in found], found[0][1]
    return [
        f"row-level security is in force for this user on {', '.join(tables)}: what its policies hide is neither run "
        f"nor shown. ALTER TABLE ... DISABLE ROW LEVEL SECURITY, or ALTER ROLE {user} BYPASSRLS"
    ]
