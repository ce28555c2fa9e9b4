"""What may be on the disk after a power loss: the files as of some moment, where what was not synced may be missing.

Pure. The model is harsher than most disks: of everything that was written to a file since its last sync any part may
have arrived and any other not, in units of 512 or 4096 bytes, a unit may be torn, a file may be longer than what
arrived in it (zeros), and what was cut off may be back. A file that was made or removed is known to be so once the
directory was synced, which SQLite does with the first sync of a new log or journal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.power.vfs import Op

DATABASE, WAL, JOURNAL = "", "-wal", "-journal"
UNITS = (512, 4096)


@dataclass(slots=True)
class _File:
    """One file: as it is for sure, and what has been done to it since."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[Op] = field(default_factory=list)
    is_known: bool = False
    """Its name is on the disk."""


@dataclass(slots=True)
class Disk:
    """The files while they are written."""

    files: dict[str, _File] = field(default_factory=lambda: {DATABASE: _File()})
    removed: dict[str, bytes] = field(default_factory=dict)
    """Files whose removal is not known to the disk yet, as they were."""

    def apply(self, op: Op) -> None:
        match op.what:
            case "create":
                self.files.setdefault(op.file, _File())
            case "write" | "truncate":
                self.files.setdefault(op.file, _File()).pending.append(op)
            case "delete":
                gone = self.files.pop(op.file, _File())
                if gone.is_known:
                    self.removed[op.file] = _written(gone.content, gone.pending)
            case "sync":
                self._sync(op.file)

    def _sync(self, name: str) -> None:
        file = self.files.get(name)
        if file is None:  # of the directory, after a removal
            self.removed.clear()
            return
        file.content = bytearray(_written(file.content, file.pending))
        file.pending = []
        if not file.is_known and name != DATABASE:
            self.removed.clear()
            for other in self.files.values():
                other.is_known = True

    def after_power_loss(self, chance: Random) -> dict[str, bytes]:
        """The files as they may be found: none for one whose name did not arrive."""
        found: dict[str, bytes] = {}
        for name, content in self.removed.items():
            if chance.random() < 0.5:
                found[name] = content
        for name, file in self.files.items():
            if file.is_known or chance.random() < 0.7:
                found[name] = _arrived(file, chance)
        return found


def disk_at(ops: Iterable[Op]) -> Disk:
    disk = Disk()
    for op in ops:
        disk.apply(op)
    return disk


def _written(content: bytes | bytearray, ops: Sequence[Op]) -> bytes:
    """All of it."""
    result = bytearray(content)
    for op in ops:
        _put(result, op)
    return bytes(result)


def _put(content: bytearray, op: Op) -> None:
    if op.what == "truncate":
        del content[op.offset :]
        content.extend(bytes(max(0, op.offset - len(content))))
        return
    content.extend(bytes(max(0, op.offset - len(content))))
    content[op.offset : op.offset + len(op.data)] = op.data


def _arrived(file: _File, chance: Random) -> bytes:
    """Some of it: everything, nothing, a beginning, or any units of it."""
    way = chance.choice(("all", "none", "beginning", "units", "units", "units"))
    if way == "all":
        return _written(file.content, file.pending)
    if way == "none":
        return bytes(file.content)
    if way == "beginning":
        return _written(file.content, file.pending[: chance.randrange(len(file.pending) + 1)])
    result, unit, share = bytearray(file.content), chance.choice(UNITS), chance.choice((0.1, 0.5, 0.9))
    for op in file.pending:
        if op.what == "truncate":
            if chance.random() < share:
                _put(result, op)
            continue
        for start in range(0, len(op.data), unit):
            if chance.random() < share:
                piece = op.data[start : start + unit]
                if chance.random() < 0.05:
                    piece = piece[: chance.randrange(len(piece) + 1)]
                _put(result, Op("write", op.file, op.offset + start, piece))
    if chance.random() < 0.1:
        result.extend(bytes(chance.choice(UNITS)))
    return bytes(result)
