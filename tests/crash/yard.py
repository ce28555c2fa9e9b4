"""The yard: real workers over a store, a ledger of every run, gates, and what to wait for.

Tests wait for facts, in the store, the ledger or the kernel, and give up after a minute; nothing here is timed. What
must hold after any accident is in `audit`.
"""

import json
import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psycopg

import everbeat
from everbeat import Everbeat, TaskStatus
from everbeat.model.event import EventInfo
from everbeat.model.task import TaskInfo
from everbeat.model.worker import WorkerInfo, WorkerStatus
from everbeat.run.journal import Journal
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter

PATIENCE = 60.0
LOOK_SECONDS = 0.02
APPS = Path(__file__).parent / "apps"
SOURCES = Path(everbeat.__file__).parent.parent

FAST = {
    "runner_heartbeat_interval_ms": 1_000,
    "claimer_heartbeat_interval_ms": 1_000,
    "running_stale_threshold_ms": 2_000,
    "claimed_stale_threshold_ms": 2_000,
    "check_interval_ms": 1_000,
}
"""Silence is judged after three and a half seconds: as fast as the configuration allows."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the ledger."""

    at_ns: int
    pid: int
    task_id: str
    name: str
    attempt: int
    fence: int
    word: str


@dataclass(slots=True, eq=False)
class Running:
    """A process that the yard started: a worker or a producer."""

    yard: "Yard"
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def ended(self, timeout: float = PATIENCE) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        if self.process.returncode is None:
            poll = select.poll()
            pidfd = os.pidfd_open(self.pid)
            try:
                poll.register(pidfd, select.POLLIN)
                assert poll.poll(timeout * 1000), f"process {self.pid} has not ended after {timeout:.0f}s"
            finally:
                os.close(pidfd)
        return self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9 of this process alone."""
        self.signal(signal.SIGKILL)
        self.ended()


class Worker(Running):
    def ended(self, timeout: float = PATIENCE) -> int:
        code = super().ended(timeout)
        self.yard.keep_journals()
        return code

    @property
    def info(self) -> WorkerInfo:
        """Its row; the newest, if it was declared dead and goes on."""
        mine = [worker for worker in self.yard.store.workers() if worker.host.pid == self.pid]
        return max(mine, key=lambda worker: (worker.status is WorkerStatus.ALIVE, worker.started_at))

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def children(self) -> list[int]:
        return children_of(self.pid)

    @property
    def fork_server(self) -> int:
        return next(pid for pid in self.children if b"everbeat.run.forkserver" in command_of(pid))

    @property
    def slots(self) -> list[int]:
        """Its task processes."""
        return children_of(self.fork_server)

    @property
    def tree(self) -> list[int]:
        server = self.fork_server
        return [self.pid, server, *children_of(server)]

    def kill_group(self) -> None:
        """kill -9 of its process group, as a terminal or a service manager would."""
        os.killpg(self.pid, signal.SIGKILL)
        self.ended()

    def kill_tree(self, *, children_first: bool = False) -> None:
        """kill -9 of every process, one after the other. The supervisor sees nothing of it when it comes last."""
        tree = self.tree
        if children_first:
            tree.reverse()
            self.signal(signal.SIGSTOP)
            self.yard.until(lambda: is_stopped(self.pid), "the supervisor is stopped")
        for pid in tree:
            with suppress(ProcessLookupError):  # of the death of the one before
                os.kill(pid, signal.SIGKILL)
        self.ended()

    def is_ready(self) -> bool:
        return re.search(r"^ready$", self.said(), re.MULTILINE) is not None

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    def freeze(self, *pids: int) -> None:
        """SIGSTOP, to the supervisor or to these. Not while the supervisor holds the write lock: it would be killed by
        the others, which is the subject of another test."""
        pids = pids or (self.pid,)
        while True:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            self.yard.until(lambda: all(is_stopped(pid) for pid in pids), "the processes are stopped")
            blocker = self.yard.store.blocker()
            if blocker is None or blocker.pid not in pids:
                return
            self.thaw(*pids)

    def thaw(self, *pids: int) -> None:
        for pid in pids or (self.pid,):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@dataclass(slots=True, eq=False)
class Yard:
    path: Path
    app: Everbeat
    environment: dict[str, str]
    url: str | None = None
    """Of the store, if it is not a file in the yard."""
    running: list[Running] = field(default_factory=list)
    may_complain: bool = False
    """Tracebacks in a worker's log are expected."""

    @property
    def store(self) -> Store:
        return self.app.store

    @property
    def location(self) -> str:
        """For --db."""
        return self.url or f"sqlite:///{self.path}/yard.db"

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, name: str, *args: Any, **options: Any) -> str:
        return self.app.tasks[name].options(**options).enqueue(*args).id

    def send_many(self, name: str, calls: Iterable[tuple[Any, ...]]) -> list[str]:
        return [handle.id for handle in self.app.tasks[name].enqueue_many(list(calls))]

    def open(self, gate: str) -> None:
        (self.path / "gates" / gate).touch()

    # -- processes ----------------------------------------------------------------------------------------------------

    def worker(
        self,
        *words: str,
        processes: int = 2,
        crash_at: str | None = None,
        clock_file: Path | None = None,
        target: str = "ground:app",
        ready: bool = True,
        environment: dict[str, str] | None = None,
        directory: Path = APPS,
        newer: bool = False,
        through: str | None = None,
    ) -> Worker:
        """Start a worker, of a newer version or `through` another of the programs if it is said, and wait until it is
        ready unless told not to."""
        testing = ["--crash-at", crash_at] if crash_at else []
        testing += ["--clock-file", str(clock_file)] if clock_file else []
        command = [str(APPS / through)] if through else []
        command += program(testing, newer=newer)
        worker = self._run(
            Worker,
            [*command, "worker", "start", target, "--processes", str(processes), *words],
            directory=directory,
            environment=environment or {},
        )
        if ready:
            self.until_ready(worker)
        return worker

    def until_ready(self, worker: Worker) -> None:
        self.until(lambda: worker.is_ready() or worker.process.poll() is not None, "the worker is ready or has ended")
        assert worker.is_ready(), f"the worker ended: {worker.process.returncode}\n{worker.said()}"

    def producer(self, *words: str) -> Running:
        """Run apps/producer.py."""
        return self._run(Running, [str(APPS / "producer.py"), *words], directory=APPS, environment={})

    def command(self, *words: str, crash_at: str | None = None, newer: bool = False) -> Running:
        """Run a command of `everbeat` in the directory of the yard."""
        begin = program(["--crash-at", crash_at] if crash_at else [], newer=newer)
        command: Running = self._run(Running, [*begin, *words], directory=self.path, environment={})
        return command

    def stranger(self) -> Running:
        """A process that holds the write lock, until it is killed."""
        stranger: Running = self._run(Running, [str(APPS / "stranger.py")], directory=APPS, environment={})
        self.until(lambda: "blocks" in stranger.said(), "the stranger blocks the store")
        return stranger

    def tear(self) -> None:
        """Make the store unreadable for as long as its writer is stopped, as if it had been stopped in its commit."""
        assert self._run(Running, [str(APPS / "tear.py")], directory=APPS, environment={}).ended() == 0

    def _run(self, kind: type[Any], words: list[str], *, directory: Path, environment: dict[str, str]) -> Any:
        log = self.path / f"process-{len(self.running)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-u", *words],
                cwd=directory,
                env=os.environ | self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = kind(self, process, log)
        self.running.append(started)
        return started

    def processes(self) -> list[int]:
        """Everything alive that has come from this yard, by its environment: tasks' own programs, too."""
        mark = f"YARD={self.path}".encode()
        return [pid for pid in all_pids() if mark in _read(f"/proc/{pid}/environ").split(b"\0")]

    def clear(self) -> None:
        """End everything."""
        for running in self.running:
            if running.process.poll() is None:
                running.signal(signal.SIGKILL)
                running.process.wait()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)  # what was stopped could not die of the death of its parent
        try:
            self.until(lambda: not self.processes(), "every process of the yard is gone")
        finally:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], T], what: str, timeout: float = PATIENCE) -> T:
        give_up = time.monotonic() + timeout
        while not (met := condition()):
            assert time.monotonic() < give_up, f"waited {timeout:.0f}s in vain until {what}"
            time.sleep(LOOK_SECONDS)
        return met

    def until_ended(self, ids: Iterable[str], timeout: float = PATIENCE) -> None:
        left = list(ids)

        def all_ended() -> bool:
            while left and self.task(left[-1]).status.is_terminal:
                left.pop()
            return not left

        self.until(all_ended, "the tasks have ended", timeout)

    def until_started(self, task_id: str, times: int = 1) -> Line:
        """Wait for the n-th run of a task; its first line."""
        self.until(lambda: len(self.starts(task_id)) >= times, f"{task_id} has started {times} times")
        return self.starts(task_id)[times - 1]

    def until_event(self, name: str, *, worker_id: str | None = None, task_id: str | None = None) -> EventInfo:
        return self.until(lambda: self.events(name, worker_id=worker_id, task_id=task_id), f"there is {name}")[0]

    @staticmethod
    def has_passed(since_ns: int, seconds: float) -> bool:
        """On the clock that the ledger and the begin marks are written by."""
        return time.monotonic_ns() - since_ns > seconds * 1e9

    # -- looking ------------------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> TaskInfo:
        found = self.store.get(task_id, full=False)
        assert found is not None, f"task {task_id} is lost"
        return found

    def full(self, task_id: str) -> TaskInfo:
        found = self.store.get(task_id)
        assert found is not None, f"task {task_id} is lost"
        return found

    def tasks(self) -> list[TaskInfo]:
        return self.store.tasks(TaskFilter(limit=100_000))

    def status(self, task_id: str) -> TaskStatus:
        return self.task(task_id).status

    def result(self, task_id: str) -> Any:
        return self.app.handle(task_id).result(timeout=PATIENCE)

    def events(self, name: str, *, worker_id: str | None = None, task_id: str | None = None) -> list[EventInfo]:
        return [
            event
            for event in self.store.events(limit=100_000, task_id=task_id)
            if event.name == name and worker_id in (None, event.worker_id)
        ]

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Plain SQL is a supported way to look."""
        if self.url is not None:
            with psycopg.connect(self.url) as looking:
                return looking.execute(sql.replace("?", "%s").encode(), values).fetchall()
        with closing(sqlite3.connect(f"file:{self.path}/yard.db?mode=rw", uri=True, timeout=PATIENCE)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            return connection.execute(sql, values).fetchall()

    def change(self, sql: str, *values: Any) -> None:
        """By hand, as nobody should."""
        if self.url is not None:
            with psycopg.connect(self.url) as server:
                changed = server.execute(sql.replace("?", "%s").encode(), values).rowcount
        else:
            with closing(sqlite3.connect(f"file:{self.path}/yard.db?mode=rw", uri=True, timeout=PATIENCE)) as file:
                file.execute("PRAGMA wal_autocheckpoint=0")
                changed = file.execute(sql, values).rowcount
                file.commit()
        assert changed > 0, sql

    def ledger(self) -> list[Line]:
        try:
            written = (self.path / "ledger").read_text()
        except FileNotFoundError:
            return []
        whole, _, _ = written.rpartition("\n")  # a line over two pages of the file can be seen half
        lines = [line.split(" ") for line in whole.splitlines()]
        return [Line(int(at), int(pid), task, name, int(n), int(f), word) for at, pid, task, name, n, f, word in lines]

    def starts(self, task_id: str) -> list[Line]:
        return [line for line in self.ledger() if line.task_id == task_id and line.word == "start"]

    def ends(self, task_id: str) -> list[Line]:
        return [line for line in self.ledger() if line.task_id == task_id and line.word == "end"]

    def left_behind(self, task_id: str) -> int:
        """The pid that a task said it left behind."""
        words = [line.word for line in self.ledger() if line.task_id == task_id and line.word.startswith("left:")]
        return int(words[0].removeprefix("left:"))

    # -- what must hold -----------------------------------------------------------------------------------------------

    def audit(self, ids: Iterable[str]) -> None:
        """After any accident, once all have ended:

        * every task is there and has ended; what may be repeated has completed;
        * no ownership ran twice, and what may run once began at most once;
        * a stored result is that of one run which the ledger saw end;
        * every other run left its trace: an attempt, or an outcome that came too late;
        * nothing failed whose code never began, or was never about to: between its mark in the journal and its first
          line a process can be killed, too.
        """
        rows = {
            row[0]: row[1:] for row in self.query("SELECT id, name, status, result, error_code FROM everbeat_tasks")
        }
        traced = Counter(self.query("SELECT task_id, fence FROM everbeat_attempts"))
        late = Counter(self.query("SELECT task_id, fence FROM everbeat_late_outcomes"))
        ledger: dict[str, list[Line]] = {}
        for line in self.ledger():
            ledger.setdefault(line.task_id, []).append(line)
        problems: list[str] = []
        for task_id in ids:
            if task_id not in rows:
                problems.append(f"{task_id} is lost")
                continue
            name, status, result, code = rows[task_id]
            starts = Counter(line.fence for line in ledger.get(task_id, []) if line.word == "start")
            ends = {line.fence for line in ledger.get(task_id, []) if line.word == "end"}
            accepted = json.loads(result) if status == "COMPLETED" and result is not None else None
            what = f"{name} {task_id} ({status}, {code}, runs {dict(starts)}, ends {ends}, result {accepted})"
            if not TaskStatus(status).is_terminal:
                problems.append(f"{what} has not ended")
            if any(count > 1 for count in starts.values()):
                problems.append(f"{what}: one ownership ran twice")
            if "again" in name and status != "COMPLETED":
                problems.append(f"{what} may be repeated and has not completed")
            if name in ONCE and starts.total() > 1:
                problems.append(f"{what} began more than once")
            if status == "COMPLETED" and accepted not in ends:
                problems.append(f"{what}: its result is of no run that ended")
            if status == "FAILED" and not starts and not self._is_marked(task_id):
                problems.append(f"{what} failed, and its code never began")
            if any(traced[task_id, fence] > 1 for fence in starts):
                problems.append(f"{what}: a run was recorded twice")
            unexplained = [f for f in starts if f != accepted and not traced[task_id, f] and not late[task_id, f]]
            if unexplained:
                problems.append(f"{what}: nothing is stored of its runs under {unexplained}")
        assert not problems, "\n".join(problems)

    def _is_marked(self, task_id: str) -> bool:
        """Whether a journal says that the last run of a task began, or its own process died under it: then the mark was
        read at once, and its place in the journal may have been used again. A journal that the others removed before
        it could be kept says nothing."""
        self.keep_journals()
        seq, fence, pid, worker_id = self.query(
            "SELECT t.seq, a.fence, a.pid, a.worker_id FROM everbeat_attempts a JOIN everbeat_tasks t"
            " ON t.id = a.task_id WHERE t.id = ? ORDER BY a.id DESC LIMIT 1",
            task_id,
        )[0]
        journal = self.path / "journals" / f"worker-{worker_id}.journal"
        marks = begun_in(journal) if journal.exists() else {(seq, fence)}
        rivals = self.query(
            "SELECT task_id FROM everbeat_attempts WHERE pid = ? AND error_code = 'WORKER_CRASHED'", pid
        )
        return (seq, fence) in marks or rivals == [(task_id,)]

    def keep_journals(self) -> None:
        """Whoever recovers a dead worker removes its journal, too."""
        kept = self.path / "journals"
        kept.mkdir(exist_ok=True)
        beside = self.path / "yard.db.d" if self.url is None else self.path / "state"  # the store may be damaged
        for path in beside.rglob("*.journal"):
            with suppress(FileNotFoundError):
                (kept / path.name).write_bytes(path.read_bytes())

    def complaints(self) -> list[str]:
        """Tracebacks and failed loops in the logs of workers that were not killed."""
        return [
            f"{running.log.name}: {line}"
            for running in self.running
            if running.process.returncode != -signal.SIGKILL
            for line in running.said().splitlines()
            if line.startswith("Traceback") or "loop.failed" in line
        ]

    def story(self) -> str:
        """What happened, for a test that failed."""
        parts = [f"--- {running.log.name} (pid {running.pid})\n{running.said()[-4000:]}" for running in self.running
                 if isinstance(running, Worker)]  # fmt: skip
        with suppress(everbeat.EverbeatError, OSError, sqlite3.Error, psycopg.Error):
            unfinished = [task for task in self.tasks() if task.status is not TaskStatus.COMPLETED]
            parts += ["--- tasks", *(f"{task}" for task in unfinished[:20])]
            events = self.store.events(limit=100_000)[-60:]
            parts += ["--- events", *(f"{e.at:%S.%f} {e.name} {e.worker_id} {e.task_id} {e.facts}" for e in events)]
        parts += ["--- ledger", *(" ".join(map(str, astuple(line))) for line in self.ledger()[-60:])]
        return "\n".join(parts)


ONCE = frozenset(
    {"quick", "marks", "work", "gated", "maybe", "a_quick", "a_gated", "exits", "faults", "heeds", "heeds_not"}
)


def program(testing: Sequence[str], *, newer: bool) -> list[str]:
    """`everbeat` with what is done to it, or apps/newer.py."""
    if newer:
        return [str(APPS / "newer.py"), *testing, "--"]
    return ["-m", "everbeat.testing", *testing, "--"] if testing else ["-m", "everbeat"]


def begun_in(journal: Path) -> frozenset[tuple[int, int]]:
    facts = Journal.read(journal)
    return facts.begun if facts else frozenset()


# -- processes as the kernel knows them -------------------------------------------------------------------------------


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def is_alive(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], [b"Z"], [b"X"])


def is_stopped(pid: int) -> bool:
    """Every thread of it."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return True
    return all(_stat(pid, thread)[:1] in ([b"T"], []) for thread in threads)


def children_of(pid: int) -> list[int]:
    return sorted(child for child in all_pids() if _stat(child)[1:2] == [str(pid).encode()] and is_alive(child))


def command_of(pid: int) -> bytes:
    return _read(f"/proc/{pid}/cmdline")


def _stat(pid: int, thread: str | None = None) -> list[bytes]:
    """State, parent, and so on; empty if there is no such process."""
    content = _read(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat")
    return content[content.rindex(b")") + 2 :].split() if content else []


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
