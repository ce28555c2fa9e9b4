"""The journal says which tasks began, after everybody who wrote it is gone."""

import os
import resource
import signal
import stat
import struct
from pathlib import Path

import pytest

from everbeat.run.journal import Journal
from everbeat.run.wire import InterruptKind


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.create(tmp_path, "w/1", boot_id="boot-1", slots=2, entries=4)


def test_a_mark_counts_for_exactly_the_ownership_that_wrote_it(journal: Journal) -> None:
    journal.begin(2, seq=70, fence=5)

    assert journal.begun_ns(2, 70, 5) is not None
    assert journal.begun_ns(2, 70, 6) is None
    assert journal.begun_ns(2, 71, 5) is None
    assert journal.begun_ns(1, 70, 5) is None


def test_nothing_is_left_of_a_journal_for_which_there_is_no_room(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            Journal.create(tmp_path, "w", boot_id="boot-1", slots=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert list(tmp_path.iterdir()) == []


def test_marks_survive_kill_9_of_the_process_that_wrote_them(journal: Journal) -> None:
    pid = os.fork()
    if pid == 0:
        Journal.map(os.dup(journal.fd)).begin(0, seq=1, fence=9)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)

    facts = Journal.read(journal.path)

    assert facts is not None
    assert (facts.worker_id, facts.boot_id) == ("w/1", "boot-1")
    assert facts.begun == {(1, 9)}


def test_a_mark_that_was_cut_off_means_not_begun(journal: Journal) -> None:
    journal.begin(0, seq=1, fence=9)
    with open(journal.path, "r+b") as file:  # as far as a writer may get: the fence is wiped, the new seq is there
        file.seek(4096 + 2 * 64)
        file.write(struct.pack("=QQQ", 2, 123, 0))

    facts = Journal.read(journal.path)

    assert facts is not None
    assert facts.begun == frozenset()
    assert journal.begun_ns(0, 2, 9) is None


def test_the_old_fence_is_wiped_first_and_the_new_one_written_last(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[tuple[str, int]] = []

    class Words:
        def __setitem__(self, at: int, value: int) -> None:
            writes.append((("seq", "begun", "fence")[(at - journal._first_entry) % 3], value))

    monkeypatch.setattr(journal, "_words", Words())
    journal.begin(3, seq=2, fence=9)
    monkeypatch.undo()

    assert [name for name, _ in writes] == ["fence", "seq", "begun", "fence"]
    assert (writes[0], writes[-1]) == (("fence", 0), ("fence", 9))


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "magic", "version", "link"])
def test_a_journal_that_can_not_be_believed_says_nothing(journal: Journal, damage: str) -> None:
    content = journal.path.read_bytes()
    match damage:
        case "missing":
            journal.path.unlink()
        case "empty":
            journal.path.write_bytes(b"")
        case "short":
            journal.path.write_bytes(content[:-1])
        case "magic":
            journal.path.write_bytes(b"NONSENSE" + content[8:])
        case "version":
            journal.path.write_bytes(content[:8] + b"\xff" + content[9:])
        case "link":
            moved = journal.path.rename(journal.path.with_suffix(".moved"))
            journal.path.symlink_to(moved)

    assert Journal.read(journal.path) is None


def test_an_entry_is_given_out_once_until_it_is_released(journal: Journal) -> None:
    given = [journal.allocate() for _ in range(4)]

    assert sorted(given) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="all 4 journal entries are in use"):
        journal.allocate()
    journal.release(2)
    assert journal.allocate() == 2


def test_a_process_that_maps_it_sees_beats_and_requests(journal: Journal) -> None:
    child = Journal.map(os.dup(journal.fd))

    child.beat(1)
    journal.request_interrupt(1, seq=3, fence=7, kind=InterruptKind.TIMEOUT)
    journal.request_interrupt(1, seq=3, fence=7, kind=InterruptKind.TIMEOUT)

    assert journal.beat_ns(1) > 0
    assert journal.beat_ns(0) == 0
    request = child.interrupt_request(1)
    assert (request.seq, request.fence, request.number, request.kind) == (3, 7, 2, InterruptKind.TIMEOUT)


def test_slots_and_entries_that_do_not_exist_are_refused(journal: Journal) -> None:
    with pytest.raises(IndexError):
        journal.beat(2)
    with pytest.raises(IndexError):
        journal.begin(4, 1, 1)


def test_the_file_is_private_and_has_its_blocks(journal: Journal) -> None:
    found = journal.path.stat()

    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_blocks * 512 >= found.st_size


def test_closing_may_leave_the_file_or_take_it_away(journal: Journal, tmp_path: Path) -> None:
    other = Journal.create(tmp_path, "w2", boot_id="boot-1", slots=1, entries=1)

    journal.close(unlink=False)
    other.close(unlink=True)

    assert journal.path.exists()
    assert not other.path.exists()
