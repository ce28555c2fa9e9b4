"""The begin marks of one worker, in a file that every process of it has mapped (PROTOCOL 20).

A child writes a task's fence into the entry that the supervisor chose for it before any of the task's code runs. The
page cache outlives every process, so whoever recovers the worker's tasks can tell those that began from those that did
not. It does not outlive the host: that is what the boot id in the header is for.

A torn write is harmless: the old fence is wiped first and the new one written last, so a mark that is not whole belongs
to a task that had not begun. (`struct.pack_into` is not used on shared memory: what it clears first is not promised.)
Entries keep their marks when they are released: an old mark names an ownership that has ended.

Also here, because it is the one memory they share: each child's last beat, and the interrupt that it is asked to raise.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from everbeat import private
from everbeat.run.wire import InterruptKind

DEFAULT_ENTRIES = 4096
_MAGIC = b"EVERBEAT"
_VERSION = 1
_HEADER = struct.Struct("=8sIII128s64s")  # magic, version, slots, entries, worker id, boot id
_HEADER_BYTES = 4096
_WORD = 8
_SLOT_WORDS = 8  # beat, then an interrupt request; one cache line, so that neighbours do not disturb each other
_ENTRY_WORDS = 3  # seq, begun, fence
_ENTRY = struct.Struct("@QQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFacts:
    """What a journal says after its worker is gone."""

    worker_id: str
    boot_id: str
    begun: frozenset[tuple[int, int]]
    """(seq, fence) of tasks whose code began."""


@dataclass(frozen=True, slots=True)
class Request:
    """An interrupt that the supervisor asks for. Each has a new number, so that a child answers it once. A fence alone
    does not name a task: the first run of every task has the same one."""

    seq: int
    fence: int
    number: int
    kind: int


class Journal:
    """The mapped file. The supervisor creates it and hands out entries; children are given it and write their marks."""

    path: Path
    """The supervisor's: a child asks for no name, which may be gone by the time that it is made. So is the next."""
    fd: int

    def __init__(self, memory: mmap.mmap, slots: int, entries: int, worker_id: str) -> None:
        self.worker_id = worker_id
        self.slots = slots
        self.entries = entries
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        self._first_slot = _HEADER_BYTES // _WORD
        self._first_entry = self._first_slot + slots * _SLOT_WORDS
        self._free = list(range(entries - 1, -1, -1))
        self._requests = 0
        self.now_ns = time.monotonic_ns

    @staticmethod
    def path_of(directory: Path, worker_id: str) -> Path:
        return directory / f"worker-{worker_id.replace('/', '_')}.journal"

    @classmethod
    def create(
        cls, directory: Path, worker_id: str, *, boot_id: str, slots: int, entries: int = DEFAULT_ENTRIES
    ) -> Self:
        """Make a worker's journal. `slots` counts the children that may live at once, `entries` dispatched tasks."""
        path = cls.path_of(directory, worker_id)
        size = _HEADER_BYTES + slots * _SLOT_WORDS * _WORD + entries * _ENTRY.size
        fd = private.create_file(path)
        try:
            os.posix_fallocate(fd, 0, size)  # a hole would turn a full disk into SIGBUS in a child
            memory = mmap.mmap(fd, size)
        except OSError:
            path.unlink(missing_ok=True)  # without a lock beside it nobody would ever come back for it
            os.close(fd)
            raise
        header = _HEADER.pack(_MAGIC, _VERSION, slots, entries, worker_id.encode(), boot_id.encode())
        memory[: _HEADER.size] = header
        journal = cls(memory, slots, entries, worker_id)
        journal.path, journal.fd = path, fd
        return journal

    @classmethod
    def map(cls, fd: int) -> Self:
        """That of the supervisor, in a child. The descriptor is used up."""
        memory = mmap.mmap(fd, 0)
        os.close(fd)
        _, _, slots, entries, worker_id, _ = _HEADER.unpack_from(memory)
        return cls(memory, slots, entries, worker_id.rstrip(b"\0").decode(errors="replace"))

    @staticmethod
    def read(path: Path) -> JournalFacts | None:
        """What a journal says, read as a plain file by somebody else. None if it can not be believed."""
        try:
            with open(private.open_file(path, os.O_RDONLY, owners=()), "rb") as file:
                content = file.read()
        except (OSError, ValueError):
            return None
        if len(content) < _HEADER_BYTES:
            return None
        magic, version, slots, entries, worker_id, boot_id = _HEADER.unpack_from(content)
        first = _HEADER_BYTES + slots * _SLOT_WORDS * _WORD
        if magic != _MAGIC or version != _VERSION or len(content) != first + entries * _ENTRY.size:
            return None
        marks: Iterator[tuple[int, int, int]] = _ENTRY.iter_unpack(content[first:])
        return JournalFacts(
            worker_id=worker_id.rstrip(b"\0").decode(errors="replace"),
            boot_id=boot_id.rstrip(b"\0").decode(errors="replace"),
            begun=frozenset((seq, fence) for seq, _, fence in marks if fence),
        )

    # The supervisor's side.

    def allocate(self) -> int:
        """An entry for a task that is about to be dispatched. Raises RuntimeError when all are in use."""
        return self.allocate_many(1)[0]

    def allocate_many(self, count: int) -> list[int]:
        if len(self._free) < count:
            raise RuntimeError(f"all {self.entries} journal entries are in use")
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def release(self, *entries: int) -> None:
        """The tasks that had these entries are settled or were taken back."""
        self._free.extend(entries)

    def begun_ns(self, entry: int, seq: int, fence: int) -> int | None:
        """When this ownership's code began, by the monotonic clock; None if it did not."""
        words, at = self._words, self._entry(entry)
        return words[at + 1] if words[at + 2] == fence and words[at] == seq else None

    def beat_ns(self, slot: int) -> int:
        """The last beat of the child in this slot, by the monotonic clock."""
        return self._words[self._slot(slot)]

    def request_interrupt(self, slot: int, seq: int, fence: int, kind: InterruptKind) -> None:
        words, at = self._words, self._slot(slot)
        self._requests += 1
        words[at + 2] = 0
        words[at + 1] = seq
        words[at + 3] = self._requests
        words[at + 4] = kind
        words[at + 2] = fence

    def close(self, *, unlink: bool) -> None:
        if unlink:
            with suppress(FileNotFoundError):
                self.path.unlink()
        self._words.release()
        self._memory.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    # The children's side.

    def begin(self, entry: int, seq: int, fence: int) -> None:
        """The begin mark. Written before arguments are decoded."""
        words, at = self._words, self._entry(entry)
        words[at + 2] = 0
        words[at] = seq
        words[at + 1] = self.now_ns()
        words[at + 2] = fence

    def beat(self, slot: int) -> None:
        self._words[self._slot(slot)] = self.now_ns()

    def interrupts(self, slot: int) -> int:
        """The number of the last interrupt that was asked for."""
        return self._words[self._slot(slot) + 3]

    def interrupt_request(self, slot: int) -> Request:
        words, at = self._words, self._slot(slot)
        return Request(seq=words[at + 1], fence=words[at + 2], number=words[at + 3], kind=words[at + 4])

    def _slot(self, slot: int) -> int:
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} is not one of the {self.slots} of this journal")
        return self._first_slot + slot * _SLOT_WORDS

    def _entry(self, entry: int) -> int:
        if not 0 <= entry < self.entries:
            raise IndexError(f"entry {entry} is not one of the {self.entries} of this journal")
        return self._first_entry + entry * _ENTRY_WORDS
