"""What the tasks of a drill say themselves: one line when a run begins, some while it goes on, one at its end.

A file that is only ever appended to, each line in one write, so that it survives the death of whoever writes and owes
nothing to the store that is being tried.
"""

import os
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Word(StrEnum):
    BEGIN = "begin"
    GOES_ON = "goes-on"
    END = "end"
    RAISE = "raise"


LAST = frozenset({Word.END, Word.RAISE})
"""A run that said one of these was not cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    mono_ns: int
    """CLOCK_MONOTONIC, the same for all processes of this machine."""
    wall_us: int
    pid: int
    task_id: str
    attempt: int
    fence: int
    word: Word


def note(path: str | Path, word: Word, *, task_id: str, attempt: int, fence: int) -> None:
    line = f"{time.monotonic_ns()} {time.time_ns() // 1000} {os.getpid()} {task_id} {attempt} {fence} {word}\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


class Reader:
    """Reads what has been added since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.lines: list[Line] = []
        self._open: dict[tuple[str, int], int] = {}
        self._ends = 0

    def read(self) -> list[Line]:
        """All of it. A line that is not complete yet is left for the next time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return self.lines
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in map(_line, whole.decode().splitlines()):
            self._note(line)
        return self.lines

    def open_runs(self) -> set[int]:
        """Processes whose last word was not the end of a run."""
        self.read()
        return set(self._open.values())

    def ends(self) -> int:
        """How many runs came to their end."""
        self.read()
        return self._ends

    def _note(self, line: Line) -> None:
        self.lines.append(line)
        self._ends += line.word is Word.END
        if line.word in LAST:
            self._open.pop((line.task_id, line.fence), None)
        else:
            self._open[line.task_id, line.fence] = line.pid


def _line(text: str) -> Line:
    mono_ns, wall_us, pid, task_id, attempt, fence, word = text.split(" ")
    return Line(
        mono_ns=int(mono_ns), wall_us=int(wall_us), pid=int(pid), task_id=task_id, attempt=int(attempt),
        fence=int(fence), word=Word(word),
    )  # fmt: skip
