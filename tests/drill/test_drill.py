"""The drill as a user holds it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.postgres import Cluster
from tests.words import enqueue

from everbeat.config import AppConfig, SQLiteConfig
from everbeat.drill.ledger import Reader, Word, note
from everbeat.drill.workers import Worker, Workers
from everbeat.store.open import open_store

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`everbeat drill` with a temporary directory of its own."""
    running: list[subprocess.Popen[str]] = []
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def drill(*words: str) -> "subprocess.Popen[str]":
        bare = {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT_")}
        running.append(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "everbeat", "drill", *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                env=bare | {"TMPDIR": str(temporary)},
            )
        )  # fmt: skip
        return running[-1]

    yield drill
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert left_by(temporary) == []


def left_by(temporary: Path) -> list[int]:
    """Processes with the mark of a drill in that directory."""
    mark = f"EVERBEAT_DRILL={temporary}".encode()
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found


def test_a_short_drill_keeps_every_promise_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    words = ("--workers", "2", "--tasks", "80", "--seconds", "6", "--seed", "11", "--json")

    out, err = (drill := start(*words)).communicate(timeout=110)

    said = json.loads(out)
    assert drill.returncode == 0, f"{said['broken']}\n{err}"
    assert (said["lost"], said["stuck"], said["accepted_duplicates"], said["broken"]) == (0, 0, 0, [])
    assert said["accepted"] == 80 == said["completed_once"] + said["failed"] + said["quarantined"]
    assert said["seed"] == 11
    assert sum(said["deeds"].values()) > 3
    assert said["time_to_detect"]["count"] > 0
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_store_with_real_work_is_refused_and_left_as_it_was(start: Start, tmp_path: Path) -> None:
    with closing(open_store(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db")))) as store:
        enqueue(store, id="real")

    out, err = (drill := start("--db", f"sqlite:///{tmp_path}/jobs.db", "--seconds", "1")).communicate(timeout=60)

    assert drill.returncode == 2
    assert out == ""
    assert "jobs.db holds 1 tasks" in err
    assert "--force" in err
    assert list((tmp_path / "tmp").iterdir()) == []


def test_among_real_work_only_its_own_tasks_are_run_and_removed(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with closing(open_store(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db")))) as store:
        enqueue(store, id="real")

        words = ("--db", url, "--force", "--workers", "1", "--tasks", "5", "--seconds", "1", "--seed", "3")
        out, err = (drill := start(*words)).communicate(timeout=110)

        assert drill.returncode == 0, out + err
        assert "Every promise was kept." in out
        (left,) = [(count.queue, count.status, count.count) for count in store.counts() if count.count]
        assert left == ("default", "PENDING", 1)


def test_the_same_drill_again_in_the_same_store_does_not_meet_the_tasks_of_the_first(
    start: Start, tmp_path: Path
) -> None:
    """They were kept, and have ended: a second one that met them would find nothing to do, and say that all is well."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    words = ("--db", url, "--workers", "1", "--tasks", "5", "--seconds", "1", "--seed", "3", "--keep", "--json")
    out, err = (drill := start(*words)).communicate(timeout=110)
    assert drill.returncode == 0, out + err

    out, err = (drill := start(*words)).communicate(timeout=110)

    assert drill.returncode == 0, out + err
    assert json.loads(out)["runs"] >= 5
    with closing(open_store(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db")))) as store:
        assert sum(count.count for count in store.counts()) == 10


def test_a_store_that_was_not_there_is_not_there_afterwards(start: Start, tmp_path: Path) -> None:
    words = ("--db", "sqlite:///new.db", "--workers", "1", "--tasks", "5", "--seconds", "1", "--seed", "3")

    out, err = (drill := start(*words)).communicate(timeout=110)

    assert drill.returncode == 0, out + err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmp"]


@pytest.mark.timeout(240)
def test_a_drill_on_a_server_that_is_killed_as_well_keeps_every_promise(start: Start, tmp_path: Path) -> None:
    """On an empty database. Only whoever started the server can start it again: the command asks for it, and waits."""
    asked = tmp_path / "kill-it"
    command = f"touch {asked}; while [ -e {asked} ]; do sleep 0.05; done"
    words = ("--workers", "2", "--tasks", "60", "--seconds", "9", "--seed", "4", "--json", "--kill-database", command)
    server = Cluster()
    try:
        url = server.new_database()
        drill = start("--db", url, *words)
        give_up = time.monotonic() + 200
        while drill.poll() is None and time.monotonic() < give_up:
            if asked.exists():
                server.stop()
                server.start()
                asked.unlink()
            time.sleep(0.05)
        out, err = drill.communicate(timeout=10)
        left = server.sql("SELECT count(*) FROM everbeat_tasks", database=url.rpartition("/")[2])
    finally:
        server.remove()

    said = json.loads(out)
    assert drill.returncode == 0, f"{said['broken']}\n{err}"
    assert (said["accepted"], said["lost"], said["stuck"], said["accepted_duplicates"]) == (60, 0, 0, 0)
    assert said["deeds"]["times the database was killed"] >= 1
    assert left == [(0,)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_drill_that_is_stopped_leaves_nothing(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    drill = start("--workers", "2", "--tasks", "50", "--seconds", "60")
    assert drill.stderr is not None
    assert any("violence" in line for line in drill.stderr)

    drill.send_signal(number)

    assert drill.wait(60) != 0
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_workers_of_a_drill_that_is_killed_die_with_it(start: Start, tmp_path: Path) -> None:
    drill = start("--workers", "2", "--tasks", "50", "--seconds", "60")
    assert drill.stderr is not None
    assert any("violence" in line for line in drill.stderr)

    drill.kill()
    drill.wait()

    give_up = time.monotonic() + 30
    while left_by(tmp_path / "tmp"):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_a_file_has_no_server_that_could_be_killed(start: Start) -> None:
    _, err = (drill := start("--kill-database", "true")).communicate(timeout=60)

    assert drill.returncode == 2
    assert "SQLite has no server to kill" in err


def test_a_ledger_is_read_as_it_grows_and_never_a_line_by_half(tmp_path: Path) -> None:
    path, reader = tmp_path / "ledger", Reader(tmp_path / "ledger")
    assert reader.read() == []

    note(path, Word.BEGIN, task_id="a", attempt=1, fence=1)
    note(path, Word.BEGIN, task_id="b", attempt=1, fence=1)
    note(path, Word.END, task_id="b", attempt=1, fence=1)
    with path.open("a") as file:
        file.write("12 3")

    assert [(line.task_id, line.word) for line in reader.read()] == [("a", "begin"), ("b", "begin"), ("b", "end")]
    assert len(reader.read()) == 3
    assert (reader.ends(), reader.open_runs()) == (1, {os.getpid()})


def test_a_process_whose_run_has_ended_is_not_busy(tmp_path: Path) -> None:
    path, reader = tmp_path / "ledger", Reader(tmp_path / "ledger")
    note(path, Word.BEGIN, task_id="a", attempt=1, fence=1)
    assert reader.open_runs() == {os.getpid()}

    note(path, Word.END, task_id="a", attempt=1, fence=1)

    assert reader.open_runs() == set()


@pytest.mark.parametrize(("was_told", "complaints"), [(True, 0), (False, 1)])
def test_a_worker_that_ends_though_nobody_told_it_to_is_complained_about_also_if_it_ends_well(
    tmp_path: Path, was_told: bool, complaints: int
) -> None:
    workers = Workers(tmp_path, "sqlite:///nothing.db", 0, "drill-x")
    process = subprocess.Popen(["true"])
    (tmp_path / "log").touch()
    worker = Worker("drill-x-worker-1", process, os.pidfd_open(process.pid), tmp_path / "log")
    worker.was_told_to_stop = was_told
    workers.living.append(worker)
    process.wait()

    workers.tend()

    assert len(workers.complaints) == complaints
