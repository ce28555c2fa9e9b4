"""Attacks on the files beside the database (PROTOCOL 40): planted links, pipes, foreign owners, open doors."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.words import enqueue, status_of

from everbeat.errors import StoreUnavailable
from everbeat.model.state import TaskStatus
from everbeat.store.sqlite import side
from everbeat.store.sqlite.bells import Bell, Ringer
from everbeat.store.sqlite.store import SQLiteStore

STRANGER = 4242


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    SQLiteStore(path).close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(path, patience=2)
    yield store
    store.close()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file belong to another user: really if we may, else as far as the system tells."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER)
        return
    inode, ask = path.stat().st_ino, os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = ask(fd)
        return os.stat_result([*found[:4], STRANGER, *found[5:]]) if found.st_ino == inode else found

    monkeypatch.setattr(os, "fstat", fstat)


def turnstile(path: Path) -> Path:
    """Where it will be: the directory is there, the turnstile is not."""
    directory = side.make_directory(side.directory_of(path), like=path)
    (directory / "turnstile").unlink(missing_ok=True)
    return directory / "turnstile"


@pytest.mark.parametrize("exists", [True, False])
def test_a_planted_link_is_not_followed(path: Path, tmp_path: Path, store: SQLiteStore, exists: bool) -> None:
    precious = tmp_path / "precious"
    if exists:
        precious.touch(0o600)
    turnstile(path).symlink_to(precious)

    with pytest.raises(StoreUnavailable, match="turnstile"):
        enqueue(store)

    assert precious.exists() is exists


def test_a_planted_pipe_is_refused_and_stops_nobody(path: Path, store: SQLiteStore) -> None:
    os.mkfifo(turnstile(path))

    with pytest.raises(StoreUnavailable, match="not a regular file"):
        enqueue(store)


def test_a_planted_directory_is_refused(path: Path, store: SQLiteStore) -> None:
    turnstile(path).mkdir()

    with pytest.raises(StoreUnavailable, match="turnstile"):
        enqueue(store)


def test_a_file_of_another_user_is_refused(path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = turnstile(path)
    planted.touch(0o600)
    give_away(planted, monkeypatch)

    with pytest.raises(StoreUnavailable, match="turnstile"):
        enqueue(store)


def test_a_second_name_of_a_precious_file_does_not_open_it_to_the_group(path: Path, tmp_path: Path) -> None:
    """Whoever shares the database with us may plant it; we would give its rights away with our own hands."""
    path.chmod(0o660)
    precious = tmp_path / "precious"
    precious.touch(0o600)
    os.link(precious, turnstile(path))

    with pytest.raises(StoreUnavailable, match="turnstile"):
        enqueue(SQLiteStore(path, patience=2))

    assert mode_of(precious) == 0o600


def test_a_directory_that_others_may_use_is_closed_to_them(path: Path, store: SQLiteStore) -> None:
    directory = side.directory_of(path)
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)

    enqueue(store)

    assert mode_of(directory) == 0o700


def test_an_open_directory_of_another_user_is_refused(
    path: Path, store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = side.directory_of(path)
    directory.mkdir(exist_ok=True)
    give_away(directory, monkeypatch)

    with pytest.raises(StoreUnavailable, match="is not a directory of this user"):
        enqueue(store)


def test_a_file_in_the_place_of_the_directory_is_refused(path: Path, store: SQLiteStore) -> None:
    directory = side.directory_of(path)
    if directory.exists():
        for entry in directory.iterdir():
            entry.unlink()
        directory.rmdir()
    directory.touch()

    with pytest.raises(StoreUnavailable, match="is not a directory of this user"):
        enqueue(store)


def test_a_bell_that_is_a_file_is_not_written_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("my thesis")
    bells = tmp_path / "wake"
    bells.mkdir()
    os.link(precious, bells / "worker")

    Ringer(bells).ring(lambda name: True)

    assert precious.read_text() == "my thesis"


def test_a_bell_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    bells, elsewhere = tmp_path / "wake", tmp_path / "elsewhere"
    bells.mkdir()
    elsewhere.mkdir()
    with_reader = Bell(elsewhere, "worker")
    (bells / "worker").symlink_to(elsewhere / "worker")

    Ringer(bells).ring(lambda name: True)

    with pytest.raises(BlockingIOError):
        os.read(with_reader.fileno(), 1)
    with_reader.close()


def test_a_bell_that_nobody_answers_does_not_hold_up_a_sender(path: Path, store: SQLiteStore) -> None:
    bell = store.listen("deaf")
    with suppress(BlockingIOError):
        while os.write(bell.fileno(), b"!" * 4096):
            pass
    enqueue(store, id="a")

    assert status_of(store, "a") is TaskStatus.PENDING
    bell.close()


def test_every_side_file_is_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        store = SQLiteStore(path)
        bell = store.listen("worker")
        enqueue(store)
    finally:
        os.umask(before)

    found = {entry.relative_to(path.parent).as_posix(): mode_of(entry) for entry in path.parent.rglob("*")}
    bell.close()
    store.close()

    directories = {"jobs.db.d", "jobs.db.d/wake"}
    assert {name for name, mode in found.items() if mode != (0o700 if name in directories else 0o600)} == set()
    assert {"jobs.db", "jobs.db-wal", "jobs.db.d/turnstile", "jobs.db.d/wake/worker"} <= found.keys()
