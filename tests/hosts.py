"""Real workers on PostgreSQL that are, or seem to be, on several hosts.

Tests wait for facts and give up after a minute. A worker on a host of its own is one whose lock file nobody else can
see: here its row says that it registered under another kernel.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from tests.run.apps import hosts as application

import everbeat
from everbeat import TaskStatus
from everbeat.errors import StoreUnavailable
from everbeat.model.task import TaskInfo
from everbeat.model.worker import WorkerInfo
from everbeat.store.postgres.lease import name_of

PATIENCE = 60.0
LOOK_SECONDS = 0.02
APPS = Path(application.__file__).parent
SOURCES = Path(everbeat.__file__).parent.parent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    task_id: str
    fence: int
    at: int
    """Nanoseconds of the kernel's monotonic clock."""
    word: str


@dataclass(slots=True, eq=False)
class HostedWorker:
    hosts: "Hosts"
    process: "subprocess.Popen[bytes]"
    log: Path
    name: str
    id: str = ""

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        return re.search(r"^ready$", self.said(), re.MULTILINE) is not None

    @property
    def info(self) -> WorkerInfo:
        return next(worker for worker in self.hosts.app.store.workers() if worker.name == self.name)

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """kill -9 of everything that it is."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def end_session(self) -> None:
        """As an operator, or a crash of its backend, would."""
        ended = self.hosts.query(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s",
            name_of(self.id),
        )
        assert ended == [(True,)]


@dataclass(slots=True, eq=False)
class Hosts:
    url: str
    place: Path
    recovery: dict[str, Any] = field(default_factory=dict)
    workers: list[HostedWorker] = field(default_factory=list)
    app: everbeat.Everbeat = field(init=False)

    def __post_init__(self) -> None:
        self.app = application.make_app(self.url, **self.recovery)

    def worker(
        self, name: str, *words: str, url: str | None = None, within: Sequence[str] = (), elsewhere: bool = True
    ) -> HostedWorker:
        """Start one and wait until it is ready. `within`: the command that runs it on its host; `elsewhere`: its row
        says that it is on another host."""
        log = self.place / f"{name}.log"
        mine = {
            "HOSTS_URL": url or self.url,
            "HOSTS_PLACE": str(self.place),
            "HOSTS_RECOVERY": json.dumps(self.recovery),
            "PYTHONPATH": str(SOURCES),
            "EVERBEAT_STATE_DIR": str(self.place / f"state-{name}"),
        }
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*within, sys.executable, "-u", "-m", "everbeat", "worker", "start", "hosts:app", "--processes", "4",
                 "--name", name, *words],
                cwd=APPS, env=os.environ | mine, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        worker = HostedWorker(self, process, log, name)
        self.workers.append(worker)
        self.until(lambda: worker.is_ready or process.poll() is not None, f"{name} is ready", worker.said)
        assert process.poll() is None, worker.said()
        worker.id = worker.info.id
        if elsewhere:
            self.query("UPDATE everbeat_workers SET boot_id = %s WHERE id = %s RETURNING 1", f"of {name}", worker.id)
        return worker

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()
        self.app.close()

    # -- deeds ------------------------------------------------------------------------------------------------------

    def send(self, name: str, gate: str = "gate", **options: Any) -> str:
        return self.app.tasks[name].options(**options).enqueue(gate).id

    def send_to(self, worker: HostedWorker, *wanted: tuple[str, dict[str, Any]]) -> list[str]:
        """While no other worker is there to take them; wait until they run."""
        sent = [self.send(name, **options) for name, options in wanted]
        for task_id in sent:
            self.until_started(task_id)
            assert self.task(task_id).worker_id == worker.id
        return sent

    def open(self, gate: str = "gate") -> None:
        (self.place / gate).touch()

    # -- waiting ----------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], T], what: str, story: Callable[[], str] | None = None) -> T:
        """Also while the server is away."""
        give_up = time.monotonic() + PATIENCE
        while True:
            with suppress(StoreUnavailable, psycopg.OperationalError):
                if met := condition():
                    return met
            assert time.monotonic() < give_up, f"waited in vain until {what}\n{(story or self.story)()}"
            time.sleep(LOOK_SECONDS)

    def until_started(self, task_id: str, times: int = 1) -> Line:
        lines = self.until(lambda: self.starts(task_id)[times - 1 :], f"{task_id} has started {times} times")
        return lines[0]

    def until_said(self, worker: HostedWorker, words: str) -> None:
        self.until(lambda: words in worker.said(), f"{worker.name} says {words}", worker.said)

    def until_seen(self, worker: HostedWorker, by: HostedWorker) -> None:
        """The one holds its session, and the other has looked since."""
        self.until(lambda: self.query(SESSION, name_of(worker.id)), f"{worker.name} holds its session")
        ((since,),) = self.query("SELECT clock_timestamp()")
        for _ in range(2):  # the first may have begun before
            ((since,),) = self.until(lambda: self.query(LOOKED, name_of(by.id), since), f"{by.name} has looked")  # noqa: B023

    # -- looking ----------------------------------------------------------------------------------------------------

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(sql, values).fetchall()

    def task(self, task_id: str) -> TaskInfo:
        found = self.app.store.get(task_id)
        assert found is not None, f"task {task_id} is lost"
        return found

    def status(self, task_id: str) -> TaskStatus:
        return self.task(task_id).status

    def result(self, task_id: str) -> Any:
        self.until(lambda: self.status(task_id).is_terminal, f"{task_id} has ended")
        return self.app.handle(task_id).result(timeout=PATIENCE)

    def ledger(self) -> list[Line]:
        path = self.place / "ledger"
        written = path.read_text() if path.exists() else ""
        words = [line.split(" ") for line in written.rpartition("\n")[0].splitlines()]
        return [Line(task_id, int(fence), int(at), word) for task_id, fence, at, word in words]

    def starts(self, task_id: str) -> list[Line]:
        return self.lines(task_id, "start")

    def lines(self, task_id: str, word: str) -> list[Line]:
        return [line for line in self.ledger() if line.task_id == task_id and line.word == word]

    def events(self, name: str) -> list[str | None]:
        """Of whom each of them tells."""
        return [event.worker_id for event in self.app.store.events(limit=10_000) if event.name == name]

    def story(self) -> str:
        said = [f"--- {worker.name}\n{worker.said()[-3000:]}" for worker in self.workers]
        return "\n".join([*said, "--- ledger", *map(str, self.ledger())])


SESSION = """
SELECT 1 FROM pg_stat_activity a JOIN pg_locks l USING (pid)
 WHERE a.application_name = %s AND l.locktype = 'advisory' AND l.granted"""
LOOKED = """
SELECT query_start FROM pg_stat_activity
 WHERE application_name = %s AND query_start > %s AND state = 'idle' AND query LIKE '%%everbeat_workers%%'"""
