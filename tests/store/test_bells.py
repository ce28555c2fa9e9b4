"""Wake-ups: they reach whoever listens, only those who can use them, and can not make a commit fail."""

import os
import select
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.words import a_task, claim, claim_one, completed, enqueue, register, requeue, settle

from everbeat.errors import StoreUnavailable
from everbeat.store.sqlite import bells
from everbeat.store.sqlite.bells import Bell, Ringer
from everbeat.store.sqlite.store import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "bells.db", durability="normal")
    yield store
    store.close()


LISTENER = """
import pathlib, sys
from everbeat.store.sqlite.bells import Bell
bell = Bell(pathlib.Path(sys.argv[1]), "w1")
print("up", flush=True)
sys.stdin.read()
"""


def has_rung(bell: Bell) -> bool:
    rung = bool(select.select([bell.fileno()], [], [], 0)[0])
    bell.clear()
    return rung


def everybody(name: str) -> bool:
    return True


def test_a_bell_rings_until_it_is_cleared(tmp_path: Path) -> None:
    bell, ringer = Bell(tmp_path, "w1"), Ringer(tmp_path)

    ringer.ring(everybody)
    ringer.ring(everybody)

    assert has_rung(bell)
    assert not has_rung(bell)


def test_a_bell_that_nobody_answers_fills_up_and_blocks_nobody(tmp_path: Path) -> None:
    bell, ringer = Bell(tmp_path, "w1"), Ringer(tmp_path)

    for _ in range(70_000):
        ringer.ring(everybody)

    assert has_rung(bell)


def test_only_those_who_are_wanted_are_rung(tmp_path: Path) -> None:
    first, second, ringer = Bell(tmp_path, "w1"), Bell(tmp_path, "w2"), Ringer(tmp_path)

    ringer.ring(lambda name: name == "w2")

    assert (has_rung(first), has_rung(second)) == (False, True)


def test_a_bell_of_the_dead_is_removed_by_whoever_notices(tmp_path: Path) -> None:
    """Its owner is killed before anybody rang, and after."""
    for already_rung in (False, True):
        ringer = Ringer(tmp_path)
        owner = subprocess.Popen(
            [sys.executable, "-c", LISTENER, str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert owner.stdout is not None
        owner.stdout.readline()
        if already_rung:
            ringer.ring(everybody)
        owner.kill()
        owner.communicate()

        ringer.ring(everybody)

        assert os.listdir(tmp_path) == []


def test_a_thousand_who_wait_for_other_tasks_cost_no_descriptor(tmp_path: Path) -> None:
    bells = [Bell(tmp_path, f"task-{number}.x") for number in range(200)]
    ringer = Ringer(tmp_path)
    before = len(os.listdir("/proc/self/fd"))

    ringer.ring(lambda name: name == "task-7.x")

    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert has_rung(bells[7])
    for bell in bells:
        bell.close()


@pytest.mark.parametrize("trouble", ["no directory", "not a fifo", "no permission"])
def test_ringing_never_fails(tmp_path: Path, trouble: str) -> None:
    directory = tmp_path / "wake"
    if trouble != "no directory":
        directory.mkdir()
        (directory / "w1").symlink_to("/nowhere") if trouble == "not a fifo" else (directory / "w1").mkdir()

    Ringer(directory).ring(everybody)


def test_a_bell_that_can_not_be_made_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="wake-up"):
        Bell(tmp_path / "missing", "w1")


def test_bells_are_private(store: SQLiteStore) -> None:
    bell = store.listen("w1")
    (path,) = (store.state_directory / "wake").iterdir()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    bell.close()


# -- who is woken -----------------------------------------------------------------------------------------------------


def test_a_sender_wakes_the_workers_that_can_run_the_task_and_no_other(store: SQLiteStore) -> None:
    workers = {
        "all": register(store, "all"),
        "mail": register(store, "mail", queues=("mail",)),
        "sms": register(store, "sms", queues=("sms",)),
        "unable": register(store, "unable", task_names=("sub",)),
    }
    listening = {name: store.listen(worker) for name, worker in workers.items()}

    enqueue(store, queue="mail")

    assert {name for name, bell in listening.items() if has_rung(bell)} == {"all", "mail"}
    for bell in listening.values():
        bell.close()


def test_a_worker_is_woken_before_the_commit_and_finds_what_it_is_woken_for(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes up while the disk is busy; its flush waits for the write lock, which the sender has until then."""
    register(store, "w1")
    bell, rung = store.listen("w1"), threading.Event()
    commit = store.database._commit
    worker = SQLiteStore(store.database.path, patience=5.0)

    def slow_commit(writer: sqlite3.Connection) -> None:
        assert select.select([bell.fileno()], [], [], 5)[0]
        rung.set()
        time.sleep(0.1)
        commit(writer)

    monkeypatch.setattr(store.database, "_commit", slow_commit)
    sending = threading.Thread(target=enqueue, args=[store])
    sending.start()
    assert rung.wait(5)

    assert claim(worker, "w1")
    sending.join()
    bell.close()
    worker.close()


def test_a_listener_that_is_about_to_register_is_woken_for_everything(store: SQLiteStore) -> None:
    bell = store.listen("soon")

    enqueue(store, queue="mail")

    assert has_rung(bell)
    bell.close()


def test_a_task_that_is_ready_again_wakes_a_worker(store: SQLiteStore) -> None:
    enqueue(store, id="a")
    taken = claim_one(store)
    bell = store.listen("w1")

    requeue(store, taken)

    assert has_rung(bell)
    bell.close()


def test_only_those_who_wait_for_this_task_are_woken_by_its_end(store: SQLiteStore) -> None:
    enqueue(store, id="a")
    mine, other = store.bells.for_waiter("a"), store.bells.for_waiter("b")

    settle(store, claim_one(store), completed())

    assert (has_rung(mine), has_rung(other)) == (True, False)
    mine.close()
    other.close()


def test_who_waits_again_is_rung_through_the_same_fifo_and_only_for_what_it_waits_for_now(store: SQLiteStore) -> None:
    first = store.bells.for_waiter("a")
    file = os.fstat(first.fileno()).st_ino
    store.bells.ring_waiters(["a"])
    first.close()
    second = store.bells.for_waiter("b")
    store.bells.ring_waiters(["a"])

    assert os.fstat(second.fileno()).st_ino == file
    assert not has_rung(second)
    store.bells.ring_waiters(["b"])
    assert has_rung(second)
    second.close()


def test_what_is_kept_for_the_next_wait_is_little_and_goes_with_the_store(store: SQLiteStore) -> None:
    directory = store.state_directory / "done"
    waiting = [store.bells.for_waiter(f"t{number}") for number in range(bells.MOST_SPARE + 5)]
    for bell in waiting:
        bell.close()
    kept = len(list(directory.iterdir()))
    store.close()

    assert (kept, list(directory.iterdir())) == (bells.MOST_SPARE, [])


def test_what_somebody_who_died_had_kept_is_removed_and_that_of_the_living_is_not(store: SQLiteStore) -> None:
    waited = """
import sys
from everbeat.store.sqlite.store import SQLiteStore
store = SQLiteStore(sys.argv[1])
store.bells.for_waiter("a").close()
print("up", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", waited, str(store.database.path)]
    dead, living = (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    )
    for process in (dead, living):
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
    dead.kill()
    dead.wait()
    before = {path.name for path in (store.state_directory / "done").iterdir()}

    store.bells.for_waiter("b").close()
    after = {path.name for path in (store.state_directory / "done").iterdir()}

    assert (len(before), len(before & after), len(after)) == (2, 1, 2)
    living.communicate()


def test_who_has_lost_the_directory_of_its_fifo_makes_another(store: SQLiteStore) -> None:
    store.bells.for_waiter("a").close()
    shutil.rmtree(store.state_directory / "done")

    bell = store.bells.for_waiter("a")
    store.bells.ring_waiters(["a"])

    assert has_rung(bell)
    bell.close()


def test_no_end_is_missed_by_a_listener_that_comes_at_any_moment(tmp_path: Path) -> None:
    """Hammered: for each task one thread ends it while another begins to wait. A missed bell would cost the poll's half
    second, so a poll that never looks makes it a test."""
    sender = SQLiteStore(tmp_path / "hammer.db", durability="normal")
    worker = SQLiteStore(tmp_path / "hammer.db", durability="normal")
    register(worker, "w1")
    missed: list[str] = []
    for number in range(150):
        task_id = enqueue(sender, id=f"task-{number}")
        taken = claim_one(worker)
        ending = threading.Thread(target=settle, args=(worker, taken, completed()))
        ending.start()
        bell = sender.bells.for_waiter(task_id)
        if sender.finished(task_id) is None and not select.select([bell.fileno()], [], [], 5)[0]:
            missed.append(task_id)
        ending.join()
        bell.close()

    assert missed == []
    sender.close()
    worker.close()


def test_no_task_is_missed_by_a_worker_that_begins_to_listen_at_any_moment(tmp_path: Path) -> None:
    sender = SQLiteStore(tmp_path / "hammer.db", durability="normal")
    worker = SQLiteStore(tmp_path / "hammer.db", durability="normal")
    register(worker, "w1")
    missed = 0
    for _ in range(150):
        sending = threading.Thread(target=sender.enqueue, args=([a_task()],))
        sending.start()
        bell = worker.listen("w1")
        taken = claim(worker)
        if not taken and select.select([bell.fileno()], [], [], 5)[0]:
            taken = claim(worker)
        missed += not taken
        sending.join()
        settle(worker, *(taken or claim(worker)), completed())
        with worker.database.write() as tx:
            tx.run("DELETE FROM everbeat_tasks")
        bell.close()

    assert missed == 0
    sender.close()
    worker.close()


def test_a_fresh_time_stamp_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second bell in the same tick of the file system's clock leaves the directory's time stamp as it was."""
    monkeypatch.setattr(bells, "SETTLED_NS", 10**18)
    first, ringer = Bell(tmp_path, "w1"), Ringer(tmp_path)
    ringer.ring(everybody)
    stamp = tmp_path.stat().st_mtime_ns
    second = Bell(tmp_path, "w2")
    os.utime(tmp_path, ns=(stamp, stamp))

    ringer.ring(everybody)

    assert (has_rung(first), has_rung(second)) == (True, True)
