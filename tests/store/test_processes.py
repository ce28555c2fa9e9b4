"""Several processes on one file: sending together, frozen at the worst moment, killed at any moment."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.words import enqueue, register

from everbeat.errors import StoreUnavailable
from everbeat.store.messages import TaskFilter
from everbeat.store.sqlite.blocker import find_blocker
from everbeat.store.sqlite.store import SQLiteStore

ACTOR = Path(__file__).with_name("actor.py")


class Actor:
    def __init__(self, path: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ACTOR), str(path), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self.process.pid

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")

    def freeze(self) -> None:
        """Returns when it has really stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1])

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> list[str]:
        """What it had said until then."""
        self.process.kill()
        said, _ = self.process.communicate()
        return str(said).splitlines()


StartActor = Callable[..., Actor]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    SQLiteStore(tmp_path / "x.db").close()
    return tmp_path / "x.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(path, durability="normal")
    yield store
    store.close()


@pytest.fixture
def start(path: Path) -> Iterator[StartActor]:
    started: list[Actor] = []

    def start(*words: str) -> Actor:
        started.append(Actor(path, *words))
        return started[-1]

    yield start
    for actor in started:
        if actor.process.poll() is None:
            actor.kill()


def test_eight_processes_of_four_threads_lose_and_double_nothing(store: SQLiteStore, start: StartActor) -> None:
    actors = [start("send", f"p{number}", "4", "25") for number in range(8)]
    for actor in actors:
        assert actor.hear() == "ready"
    for actor in actors:
        actor.tell()
    commits = [int(actor.hear().removeprefix("commits ")) for actor in actors]

    found = {task.id for task in store.tasks(TaskFilter(limit=10_000))}

    assert found == {f"p{p}-{thread}-{n}" for p in range(8) for thread in range(4) for n in range(25)}
    assert [count.count for count in store.counts()] == [800]
    assert sum(commits) < 800  # they shared


def test_a_process_frozen_at_the_turnstile_stops_nobody(store: SQLiteStore, start: StartActor) -> None:
    frozen = start("hold-turnstile")
    assert frozen.hear() == "holding"
    frozen.freeze()

    began = time.monotonic()
    enqueue(store, id="first")
    first = time.monotonic() - began
    for _ in range(50):
        enqueue(store)

    assert first < 3
    assert time.monotonic() - began - first < 3  # only the first one has waited
    frozen.thaw()
    frozen.tell()
    assert frozen.hear() == "left"
    enqueue(store, id="last")


def test_a_process_frozen_in_a_write_is_named_and_its_write_goes_on_when_it_thaws(
    path: Path, start: StartActor
) -> None:
    store = SQLiteStore(path, patience=0.3)
    register(store, "w1")
    enqueue(store, id="a")
    frozen = start("hold-write-lock")
    assert frozen.hear() == "holding"
    frozen.freeze()

    with pytest.raises(StoreUnavailable, match=rf"store blocked by pid {frozen.pid} \(stopped\)"):
        enqueue(store, id="b")
    blocker = store.blocker()
    assert blocker is not None
    assert (blocker.pid, blocker.is_stopped) == (frozen.pid, True)
    assert [count.count for count in store.counts()] == [1]  # looking goes on

    store.database.patience = 30
    frozen.thaw()
    frozen.tell()
    enqueue(store, id="b")
    assert (store.get("a"), store.get("b") is not None) == (None, True)
    assert find_blocker(path) is None
    store.close()


def test_a_writer_that_runs_is_named_without_being_called_stopped(path: Path, start: StartActor) -> None:
    holder = start("hold-write-lock")
    assert holder.hear() == "holding"

    blocker = find_blocker(path)

    assert str(blocker) == f"pid {holder.pid}"


def test_a_killed_holder_blocks_nobody(store: SQLiteStore, start: StartActor) -> None:
    enqueue(store, id="a")
    holder = start("hold-write-lock")
    assert holder.hear() == "holding"
    holder.kill()

    enqueue(store, id="b")

    assert store.get("a") is not None  # its half-done delete is undone


def test_whatever_was_acknowledged_survives_kill_9_at_any_moment(path: Path, start: StartActor) -> None:
    acknowledged: list[str] = []
    for turn in range(12):
        sender = start("send-for-ever", f"turn{turn}")
        acknowledged += sender.hear().split()
        for _ in range(turn * 3):  # killed earlier and later
            acknowledged += sender.hear().split()
        # The last line may be cut by the kill: what is cut was not acknowledged.
        acknowledged += [word for line in sender.kill()[:-1] for word in line.split()]

    store = SQLiteStore(path)
    assert len(acknowledged) > 100
    assert [task_id for task_id in acknowledged if store.get(task_id, full=False) is None] == []
    store.close()
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    counts = check.execute("SELECT count(*) FROM everbeat_tasks").fetchone()
    assert counts[0] % 5 == 0  # all of a call or none of it
    check.close()


def test_a_process_that_never_closes_exits_at_once(store: SQLiteStore, start: StartActor) -> None:
    """Even while a thread of it still waits at the turnstile."""
    holder = start("hold-turnstile")
    assert holder.hear() == "holding"
    actor = start("leave-open")
    assert actor.hear() == "done"

    assert actor.process.wait(5) == 0
    assert store.get("left-open") is not None


def test_what_the_killed_leave_beside_the_store_is_cleared_away(store: SQLiteStore, start: StartActor) -> None:
    actor = start("leave-open")
    assert actor.hear() == "done"
    actor.process.wait(5)

    enqueue(store)

    assert list((store.state_directory / "wake").iterdir()) == []
