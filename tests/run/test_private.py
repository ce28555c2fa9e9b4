"""Attacks on a worker's own files (PROTOCOL 40), and by rows that others wrote into a shared store."""

import json
import os
import signal
from pathlib import Path

import pytest
from tests.run.stage import Stage
from tests.words import a_worker

from everbeat.model.worker import Host, LockIdentity
from everbeat.run.journal import Journal
from everbeat.run.lockfile import WorkerLock, is_worker, lock_child_byte, this_host

EARLIER = Host(name="host-1", boot_id="an earlier boot", pid=1, pid_started=1, pid_namespace=1)


@pytest.mark.parametrize("name", ["precious", "worker-evil.lock"])
def test_a_row_can_not_make_a_worker_remove_files_elsewhere(stage: Stage, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "home"
    elsewhere.mkdir()
    precious = elsewhere / name
    precious.write_text("my thesis")
    journal = elsewhere / "worker-evil.journal"
    journal.write_text("of another store")
    heir = stage.worker("heir")
    lock = LockIdentity(path=str(precious), device=1, inode=1)
    stage.clock.id = EARLIER.boot_id
    stage.store.register(a_worker("evil", host=EARLIER, lock=lock))
    stage.clock.id = this_host().boot_id

    heir.recovery.run(actor="test", but=heir.id)

    assert (precious.read_text(), journal.read_text()) == ("my thesis", "of another store")


@pytest.mark.parametrize("worker_id", ["nul\0byte", "../../up", "x" * 300])
def test_a_row_with_an_impossible_name_stops_nobody(stage: Stage, worker_id: str) -> None:
    heir = stage.worker("heir")
    lock = LockIdentity(path=f"/nowhere/{worker_id}", device=1, inode=1)
    stage.clock.id = EARLIER.boot_id
    stage.store.register(a_worker(worker_id, host=EARLIER, lock=lock))
    stage.clock.id = this_host().boot_id
    stage.store.register(a_worker(f"{worker_id} today", host=this_host(), lock=lock))

    heir.recovery.run(actor="test", but=heir.id)


def test_locks_and_journals_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        lock = WorkerLock.create(tmp_path, "w1")
        journal = Journal.create(tmp_path, "w1", boot_id="boot", slots=1)
    finally:
        os.umask(before)

    modes = [path.stat().st_mode & 0o777 for path in (lock.path, journal.path)]
    lock.close(unlink=True)
    journal.close(unlink=True)

    assert modes == [0o600, 0o600]


@pytest.mark.parametrize("plant", ["link", "file", "pipe"])
def test_what_was_planted_under_the_name_of_a_new_file_is_not_used(tmp_path: Path, plant: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("my thesis")
    for kind in ("lock", "journal"):
        path = tmp_path / f"worker-w1.{kind}"
        {"link": lambda p: p.symlink_to(precious), "file": lambda p: p.touch(), "pipe": os.mkfifo}[plant](path)

    with pytest.raises(FileExistsError):
        WorkerLock.create(tmp_path, "w1")
    with pytest.raises(FileExistsError):
        Journal.create(tmp_path, "w1", boot_id="boot", slots=1)

    assert precious.read_text() == "my thesis"


def test_no_pipe_link_or_shared_file_is_read_as_a_journal(tmp_path: Path) -> None:
    pipe, link, second = tmp_path / "pipe", tmp_path / "link", tmp_path / "second"
    journal = Journal.create(tmp_path, "w1", boot_id="boot", slots=1)
    os.mkfifo(pipe)
    link.symlink_to(journal.path)
    os.link(journal.path, second)

    for planted in (pipe, link, second):
        assert Journal.read(planted) is None
    journal.close(unlink=True)


def test_a_journal_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(tmp_path, "w1", boot_id="boot", slots=1)
    assert Journal.read(journal.path) is not None
    owner = os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = owner(fd)
        return os.stat_result([*found[:4], 4242, *found[5:]])

    monkeypatch.setattr(os, "fstat", fstat)

    assert Journal.read(journal.path) is None
    journal.close(unlink=True)


@pytest.mark.parametrize("content", ["[]", "7", '"w1"', "{}", json.dumps({"pid": "1", "pid_started": None})])
def test_a_lock_file_with_strange_content_names_nobody(tmp_path: Path, content: str) -> None:
    path = tmp_path / "worker-w1.lock"
    path.write_text(content)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        lock_child_byte(os.open(path, os.O_RDWR), -1)
        os.write(tell, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)

    assert not is_worker(tmp_path, child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(tell)
