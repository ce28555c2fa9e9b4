"""The store goes back in time or is replaced under a living worker (PROTOCOL 8): it stops claiming and waits."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Worker, Yard

from everbeat import TaskStatus
from everbeat.run.spool import read


def copy(source: Path, target: Path) -> None:
    """Online, as a backup or its restoration would."""
    with closing(sqlite3.connect(source)) as origin, closing(sqlite3.connect(target, timeout=60)) as copied:
        for connection in (origin, copied):
            connection.execute("PRAGMA wal_autocheckpoint=0")
        origin.backup(copied)


def beaten(yard: Yard, worker: Worker, times: int) -> bool:
    rows = yard.query("SELECT beat_seq FROM everbeat_workers WHERE id = ?", worker.id)
    return bool(rows) and rows[0][0] >= times


def kept(path: Path) -> list[str]:
    return [one.task for one in read(path)[0]] if path.exists() else []


@pytest.mark.parametrize(
    ("knows_worker", "reason"), [(True, "it is older than it was"), (False, "it does not know this worker")]
)
def test_a_worker_whose_store_went_back_in_time_claims_nothing_more_and_keeps_what_ends(
    make_yard: MakeYard, knows_worker: bool, reason: str
) -> None:
    yard = make_yard(**FAST)
    database, backup = yard.path / "yard.db", yard.path / "backup.db"
    task_id = yard.send("gated", "go")
    if not knows_worker:
        copy(database, backup)
    worker = yard.worker()
    yard.until_started(task_id)
    if knows_worker:
        copy(database, backup)
    worker_id, spool = worker.id, yard.store.state_directory / f"worker-{worker.id}.spool"
    yard.until(lambda: beaten(yard, worker, 5), "it has beaten a few times")

    copy(backup, database)
    yard.until(lambda: reason in worker.said(), "it says what happened")
    later = yard.send("quick")
    yard.open("go")
    yard.until(lambda: kept(spool) == [task_id], "the outcome is kept")

    assert "store.replaced" in worker.said()
    assert str(spool) in worker.said()
    assert yard.status(later) is TaskStatus.PENDING
    assert worker.stop() == 0
    assert yard.status(task_id) is (TaskStatus.RUNNING if knows_worker else TaskStatus.PENDING)
    assert kept(spool) == [task_id]
    yard.worker("--burst").ended()
    assert yard.status(later) is TaskStatus.COMPLETED
    assert yard.status(task_id) is TaskStatus.COMPLETED
    assert len(yard.starts(task_id)) == (1 if knows_worker else 2)
    late = yard.query("SELECT worker_id FROM everbeat_late_outcomes")
    assert late == ([] if knows_worker else [(worker_id,)])


REPLACEMENTS: dict[str, Callable[[Path, Path], object]] = {
    "moved away": lambda database, aside: database.rename(aside),
    "another file in its place": lambda database, aside: (database.rename(aside), database.write_bytes(b"not ours")),
}


@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_a_worker_whose_file_was_replaced_waits_and_goes_on_when_it_is_back(
    make_yard: MakeYard, replace: Callable[[Path, Path], object]
) -> None:
    yard = make_yard(**FAST)
    database, aside = yard.path / "yard.db", yard.path / "aside.db"
    worker = yard.worker()
    task_id = yard.send("gated", "go")
    yard.until_started(task_id)
    worker_id = worker.id
    spool = yard.store.state_directory / f"worker-{worker_id}.spool"

    replace(database, aside)
    yard.until(lambda: "store.replaced" in worker.said(), "it says what happened")
    yard.open("go")
    yard.until(lambda: kept(spool) == [task_id], "the outcome is kept")
    aside.rename(database)
    yard.until(lambda: "store.recognised" in worker.said(), "it knows its store")
    yard.until_ended([task_id])
    after = yard.send("quick")
    yard.until_ended([after])

    yard.audit([task_id, after])
    assert {yard.status(one) for one in (task_id, after)} == {TaskStatus.COMPLETED}
    assert worker.id == worker_id
    assert not yard.events("worker.dead")
    assert worker.stop() == 0


def test_a_worker_declared_dead_does_not_go_on_in_another_store(make_yard: MakeYard) -> None:
    """The copy is that of a store in which it was declared dead, under a new id."""
    yard = make_yard(**FAST)
    worker = yard.worker()
    yard.until(lambda: beaten(yard, worker, 2), "it has beaten")
    worker.freeze()
    assert yard.app.get_broker().sync.mark_worker_dead(worker.id)
    with closing(sqlite3.connect(yard.path / "yard.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("UPDATE everbeat_meta SET value = 'another' WHERE key = 'store_id'")

    worker.thaw()
    yard.until(lambda: "it is another store (its id is another" in worker.said(), "it says so")
    task_id = yard.send("quick")

    assert worker.stop() == 0
    assert yard.status(task_id) is TaskStatus.PENDING
    assert len(yard.store.workers()) == 1
