"""Where a measure is taken: a store of its own, with real workers around it, that is gone afterwards.

The store a person names is never written: on SQLite the new ones are made in a directory beside it, on PostgreSQL in a
schema of their own in the same database. One that holds work is refused all the same, because measuring next to it
would slow that work down. Workers are stopped whatever happens, also when the benchmark itself is killed.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from everbeat.bench.tasks import Works, build
from everbeat.config import AppConfig, PostgresConfig, SQLiteConfig
from everbeat.config.broker import BrokerConfig
from everbeat.report.text import counted
from everbeat.run.child import die_with_parent
from everbeat.run.cpus import usable_cpus
from everbeat.store import filling
from everbeat.store.interface import Store
from everbeat.store.open import maintenance_of, open_store

T = TypeVar("T")

APP = "everbeat.bench.tasks:app"
STOP_SECONDS = 30.0
PREFIX = "everbeat-bench-"
FILE = "bench.db"


class Unusable(Exception):
    """Nothing can be measured there; the message says why and what to do."""


class Failed(Exception):
    """A measure could not be taken."""


class Place:
    def __init__(self, directory: Path, url: str, processes: int) -> None:
        self.directory = directory
        self.url = url
        self.processes = processes
        self.works: Works = build(url)
        self._workers: list[subprocess.Popen[str]] = []

    @property
    def store(self) -> Store:
        return self.works.app.store

    def worker(self, *words: str, processes: int | None = None) -> "subprocess.Popen[str]":
        """A worker that is ready to work."""
        process = self._start(*words, processes=processes)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "ready":
                return process
        raise Failed(f"a worker ended with exit code {process.wait()}: {self._last_words()}")

    def burst(self, *words: str) -> None:
        """A worker that works until nothing is left."""
        process = self._start("--burst", *words)
        process.communicate()
        if process.returncode:
            raise Failed(f"a worker ended with exit code {process.returncode}: {self._last_words()}")

    def file_bytes(self) -> int | None:
        """Of the store, if it is a file."""
        file = self.directory / FILE
        return file.stat().st_size if file.exists() else None

    def now_us(self) -> int:
        """By the clock that writes the times of tasks."""
        return round(self.store.now().timestamp() * 1_000_000)

    def drained_per_second(self, since_us: int = 1, *, most: int = filling.ALL) -> float:
        """From the first start to the last end, as the store has them, of the first so many that have ended since."""
        count, first, last = filling.drained(self.store, since_us=since_us, most=most)
        if count < 2 or last <= first:
            raise Failed(f"only {counted(count, 'task')} completed")
        return count / ((last - first) / 1e6)

    def started(self, since_us: int = 1) -> tuple[int, int]:
        """Of what has ended since then: how many tasks, and how many transactions started them."""
        return filling.started(self.store, since_us=since_us)

    def stop(self) -> None:
        for process in self._workers:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        give_up = time.monotonic() + STOP_SECONDS
        for process in self._workers:
            try:
                process.communicate(timeout=max(0.1, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        self._workers.clear()

    def _start(self, *words: str, processes: int | None = None) -> "subprocess.Popen[str]":
        command = [sys.executable, "-P", "-m", "everbeat", "worker", "start", APP, "--db", self.url, "--log-level",
                   "warning", "--processes", str(processes or self.processes), *words]  # fmt: skip
        me = os.getpid()
        with self._log.open("a") as log:
            process = subprocess.Popen(
                command, cwd=self.directory, env=_bare_environment(), text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                preexec_fn=lambda: die_with_parent(signal.SIGTERM, me),
            )  # fmt: skip
        self._workers.append(process)
        return process

    @property
    def _log(self) -> Path:
        return self.directory / "workers.log"

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-10:])


class Ground(ABC):
    """Where places are made."""

    def __init__(self, processes: int) -> None:
        self.processes = processes

    @property
    @abstractmethod
    def store(self) -> str:
        """The kind of the store: "sqlite" or "postgresql"."""

    @property
    @abstractmethod
    def location(self) -> str:
        """For people."""

    @abstractmethod
    def place(self) -> AbstractContextManager[Place]: ...

    @abstractmethod
    def settle(self, place: Place) -> None:
        """Have done now what the database would do after rows were written by the million, while it is measured."""

    @contextmanager
    def _place(self, directory: Path, url: str) -> Iterator[Place]:
        place = Place(directory, url, self.processes)
        try:
            yield place
        finally:
            place.stop()
            place.works.app.close()


class SQLiteGround(Ground):
    store = "sqlite"

    def __init__(self, parent: Path, processes: int) -> None:
        super().__init__(processes)
        self._parent = parent

    @property
    def location(self) -> str:
        return f"SQLite files in {self._parent}"

    @contextmanager
    def place(self) -> Iterator[Place]:
        with _directory(self._parent) as directory, self._place(directory, f"sqlite:///{directory}/{FILE}") as place:
            yield place

    def settle(self, place: Place) -> None:
        place.store.checkpoint()


class PostgresGround(Ground):
    store = "postgresql"

    def __init__(self, broker: PostgresConfig, processes: int) -> None:
        super().__init__(processes)
        self._broker = broker

    @property
    def location(self) -> str:
        return f"schemas in {self._broker.location}"

    @contextmanager
    def place(self) -> Iterator[Place]:
        schema = f"everbeat_bench_{secrets.token_hex(6)}"
        self._tell(f"CREATE SCHEMA {schema}")
        try:
            option = quote(f"-csearch_path={schema}", safe="")
            url = f"{self._broker.url}{'&' if '?' in self._broker.url else '?'}options={option}"
            with _directory(None) as directory, self._place(directory, url) as place:
                yield place
        finally:
            self._tell(f"DROP SCHEMA {schema} CASCADE")

    def settle(self, place: Place) -> None:
        """Who is no superuser has the checkpoint when the server makes it."""
        import psycopg

        place.store.checkpoint()  # so that there are tables
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute(filling.TIDY)
            with suppress(psycopg.errors.InsufficientPrivilege):
                connection.execute("CHECKPOINT")

    def _tell(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self._broker.url, autocommit=True) as connection:
            connection.execute(statement)


def ground_of(broker: BrokerConfig | None, *, processes: int | None = None) -> Ground:
    """`None`: SQLite in a temporary directory. Raises Unusable if the store that is named holds work."""
    processes = processes or usable_cpus()
    if broker is None:
        return SQLiteGround(Path(tempfile.gettempdir()), processes)
    _refuse_work(broker)
    if isinstance(broker, PostgresConfig):
        return PostgresGround(broker, processes)
    if not broker.path.parent.is_dir():
        raise Unusable(f"there is no directory {broker.path.parent}")
    return SQLiteGround(broker.path.parent, processes)


def _refuse_work(broker: BrokerConfig) -> None:
    if isinstance(broker, SQLiteConfig) and not broker.path.exists():
        return
    config = AppConfig(broker=broker)
    if maintenance_of(config).schema().found is None:
        return
    with closing(open_store(config, create=False, patience=5.0)) as store:
        tasks = sum(one.count for one in store.counts())
        workers = len(store.workers(alive_only=True))
    if tasks or workers:
        raise Unusable(
            f"{broker.location} holds {counted(tasks, 'task')} and {counted(workers, 'living worker')}. A benchmark "
            "beside them would slow them down: name a store, or a database, that nobody uses"
        )


@contextmanager
def _directory(parent: Path | None) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _bare_environment() -> dict[str, str]:
    """Without settings of Everbeat that were meant for somebody else."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT_")}


def until(look: Callable[[], T | None], *, seconds: float = 120.0, every: float = 0.002) -> T:
    """What `look` sees, once it is something."""
    give_up = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > give_up:
            raise Failed(f"what was waited for did not happen in {seconds:.0f} seconds")
        time.sleep(every)
    return seen
