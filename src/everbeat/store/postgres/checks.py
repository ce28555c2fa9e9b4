"""What start-up and `db check` ask about a PostgreSQL store: are its indexes whole, as far as amcheck is there to
tell, and does the server serve us as it should. Its log and its repair are the server's own affair."""

import time
from datetime import timedelta

import psycopg

from everbeat.model.integrity import Checkpoint, IntegrityResult
from everbeat.store.postgres.connection import Connection, PostgresDatabase

HAS_AMCHECK = "SELECT 1 FROM pg_extension WHERE extname = 'amcheck'"
INDEXES = """
SELECT c.oid::regclass::text, c.oid::bigint FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  JOIN pg_class t ON t.oid = i.indrelid JOIN pg_am a ON a.oid = c.relam
 WHERE t.relname LIKE 'everbeat\\_%%' AND t.relnamespace = current_schema()::regnamespace AND a.amname = 'btree'
 ORDER BY c.relpages"""
CHECK_INDEX = "SELECT bt_index_check(%s::bigint::oid::regclass, true)"
INVALID = """
SELECT c.oid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  JOIN pg_class t ON t.oid = i.indrelid
 WHERE t.relname LIKE 'everbeat\\_%%' AND t.relnamespace = current_schema()::regnamespace AND NOT i.indisvalid"""
OLDEST = """
SELECT pid, application_name, extract(epoch FROM clock_timestamp() - xact_start) FROM pg_stat_activity
 WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND datname = current_database()
 ORDER BY xact_start LIMIT 1"""
OLD_SECONDS = 300


class Checks:
    database: PostgresDatabase

    def check_integrity(self, *, budget: float) -> IntegrityResult:
        began = time.monotonic()
        with self.database.session() as connection:
            errors = [f"index {name} is not valid" for (name,) in connection.execute(INVALID)]
            warnings = list(_old_transaction(connection))
            has_amcheck = connection.execute(HAS_AMCHECK).fetchone() is not None
            complete = True
            for name, oid in connection.execute(INDEXES).fetchall() if has_amcheck else ():
                if time.monotonic() - began > budget:
                    complete = False
                    break
                errors += _check_index(connection, name, oid)
        if not has_amcheck:
            warnings.append("indexes were not checked: CREATE EXTENSION amcheck lets everbeat do it")
        return IntegrityResult(
            passed=not errors, errors=errors, warnings=warnings, complete=complete,
            duration=timedelta(seconds=time.monotonic() - began),
        )  # fmt: skip

    def repair(self, found: IntegrityResult) -> IntegrityResult:
        """Nothing here repairs a server's files behind its back."""
        return found

    def restore_log(self) -> str | None:
        return None

    def log_bytes(self) -> int:
        return 0

    def checkpoint(self) -> Checkpoint:
        return Checkpoint()


def _check_index(connection: Connection, name: str, oid: int) -> list[str]:
    try:
        connection.execute(CHECK_INDEX, (oid,))
    except (psycopg.errors.IndexCorrupted, psycopg.errors.DataCorrupted) as error:
        return [f"index {name}: {str(error).splitlines()[0]}. REINDEX INDEX {name} makes it anew"]
    except psycopg.errors.InsufficientPrivilege:
        return []
    return []


def _old_transaction(connection: Connection) -> list[str]:
    """The oldest one keeps dead rows from being removed, and claims read past them."""
    row = connection.execute(OLDEST).fetchone()
    if row is None or row[2] < OLD_SECONDS:
        return []
    pid, name, age = row
    return [
        f"a transaction of backend {pid} ({name or 'unnamed'}) is open since {age / 60:.0f} minutes: dead rows pile up "
        f"behind it and slow every claim. End it: SELECT pg_terminate_backend({pid})"
    ]
