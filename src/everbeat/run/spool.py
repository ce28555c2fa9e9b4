"""Outcomes on disk, for as long as the store does not take them (P8, PROTOCOL 30).

One file per worker beside its journal, made when it is first needed and empty again as soon as the store has caught up.
A record is its length, its checksum and a message that names store, worker, task and fence, so nothing is believed that
does not fit, and a record that was cut off by the end of its writer is seen to be none.

`replay.py` gives the outcomes of a worker that is gone to the store. Doing it twice changes nothing, so a record that
was settled and is still there does no harm.
"""

import os
import struct
import zlib
from collections.abc import Collection
from pathlib import Path

import msgspec

from everbeat import private
from everbeat.model.task import Claim, Outcome, TaskError

LIMIT = 1 << 30
SYNC_US = 1_000_000
_HEAD = struct.Struct("=II")  # length, checksum
SUFFIX = ".spool"

Ownership = tuple[int, int]
"""(seq, fence)."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome as it is kept, by names: another version of us may read it."""

    result: bytes | None = None
    error: TaskError | None = None
    began_at: int
    ended_at: int


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One record: whose run it was, what is needed to decide about it as its worker would have, and how it ended."""

    store: str
    worker: str
    task: str
    name: str
    queue: str
    seq: int
    fence: int
    attempt: int
    free_attempts: int
    solo: bool
    policy: str | None
    exclusive_key: str | None = None
    workflow_id: str | None = None
    node: int | None = None
    pid: int | None
    ended: Ended = msgspec.field(name="outcome")

    @property
    def outcome(self) -> Outcome:
        return Outcome(**msgspec.structs.asdict(self.ended))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode


class Spool:
    """A worker's own. Not for two threads at once, but for `sync`."""

    def __init__(self, directory: Path, *, worker_id: str, store_id: str, limit: int = LIMIT) -> None:
        self.path = directory / f"worker-{worker_id.replace('/', '_')}{SUFFIX}"
        self.trouble: str | None = None
        """Why nothing more can be kept: then nothing more should be begun."""
        self._worker_id = worker_id
        self._store_id = store_id
        self._limit = limit
        self._fd = -1
        self._size = 0
        self._synced_at = 0
        self._is_dirty = False
        self._has_name = False
        """The directory is known to have the file after a power cut."""
        self._held: set[Ownership] = set()

    def __len__(self) -> int:
        """Outcomes that the store has not taken yet."""
        return len(self._held)

    @property
    def is_used(self) -> bool:
        return bool(self._held or self.trouble)

    def add(self, claim: Claim, outcome: Outcome, pid: int | None) -> None:
        """Write it down, once."""
        key = claim.seq, claim.fence
        if key in self._held or self.trouble is not None:
            return
        kept = Kept(
            store=self._store_id, worker=self._worker_id, task=claim.id, name=claim.name, queue=claim.queue,
            seq=claim.seq, fence=claim.fence, attempt=claim.attempt, free_attempts=claim.free_attempts, solo=claim.solo,
            policy=claim.policy, exclusive_key=claim.exclusive_key, workflow_id=claim.workflow_id, node=claim.node,
            pid=pid, ended=Ended(**outcome._asdict()),
        )  # fmt: skip
        message = _encode(kept)
        record = _HEAD.pack(len(message), zlib.crc32(message)) + message
        if self._size + len(record) > self._limit:
            self.trouble = f"{self.path} has reached its limit of {self._limit >> 20} MiB"
            return
        try:
            self._write(record)
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror}"
            return
        self._held.add(key)
        self._is_dirty = True

    def settle(self, taken: Collection[Ownership]) -> None:
        """The store has these."""
        self._held.difference_update(taken)
        if not self._held:
            self.trouble = None
            if self._size:
                os.ftruncate(self._fd, 0)
                self._size, self._is_dirty = 0, True

    def sync(self, now: int, *, at_once: bool = False) -> None:
        """Survive the end of the machine, too. At most once a second."""
        if not self._is_dirty or not (at_once or now - self._synced_at >= SYNC_US):
            return
        self._synced_at, self._is_dirty = now, False
        try:
            os.fsync(self._fd)
            if not self._has_name:
                self._has_name = True
                _sync_directory(self.path.parent)
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror}"

    def close(self) -> None:
        """What the store has not taken stays, for whoever comes next."""
        if self._fd >= 0:
            if not self._held:
                self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def _write(self, record: bytes) -> None:
        if self._fd < 0:
            self._fd = private.create_file(self.path)
        written = 0
        try:
            while written < len(record):
                written += os.pwrite(self._fd, record[written:], self._size + written)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(record)


def read(path: Path) -> tuple[list[Kept], str | None]:
    """The records of a spool, and what is wrong with the rest. A record that was not finished is no record."""
    with open(private.open_file(path, os.O_RDONLY, owners=()), "rb") as file:
        content = memoryview(file.read())
    records: list[Kept] = []
    at = 0
    while at + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, at)
        message = content[at + _HEAD.size : at + _HEAD.size + length]
        if len(message) < length:
            break
        if zlib.crc32(message) != checksum:
            return records, f"a checksum is wrong at byte {at}"
        try:
            records.append(_decode(message))
        except msgspec.DecodeError as error:
            return records, f"the record at byte {at} is not understood: {error}"
        at += _HEAD.size + length
    return records, None


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
