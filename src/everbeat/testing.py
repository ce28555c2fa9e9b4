"""What tests may do to a process of Everbeat that nobody else can: kill it at a named point, move its wall clock.

    python -m everbeat.testing --crash-at claim.after_commit:2 -- worker start shop:app --processes 2

runs a command of `everbeat` that is killed by SIGKILL when it passes the point for the third time. Of two points,
`advance.written,flush.after_commit`, the second counts from when the first is passed. `--clock-file` names a file of
eight bytes, a signed number of microseconds that is added to the wall clock as that process sees it; write to it at any
time.
"""

import argparse
import mmap
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from everbeat import clock
from everbeat.crashpoint import POINTS, armed, leads_to

__all__ = ["POINTS", "arm", "main", "shift_clock"]

_SHIFT = struct.Struct("=q")


def arm(point: str, *, after: int = 0, once: str | None = None) -> None:
    """Kill this process when it passes `point`, after having passed it `after` times since it passed `once`."""
    for name in (point, once or point):
        if name not in POINTS:
            raise ValueError(f"there is no crash point {name!r}; the points are {', '.join(POINTS)}")
    if once is None:
        armed[point] = after
    else:
        armed[once] = 0
        leads_to[once] = point, after


def shift_clock(path: Path, seconds: float) -> None:
    """Move the wall clock of every process that was started with this clock file."""
    with path.open("r+b" if path.exists() else "wb") as file:  # in place: other processes have it mapped
        file.write(_SHIFT.pack(round(seconds * 1_000_000)))


def _follow_clock_file(path: Path) -> None:
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), _SHIFT.size, access=mmap.ACCESS_READ)
    system_wall_us = clock.SystemClock.wall_us

    def shifted_wall_us(self: clock.SystemClock) -> int:
        (shift,) = _SHIFT.unpack_from(memory)
        return system_wall_us(self) + int(shift)

    setattr(clock.SystemClock, "wall_us", shifted_wall_us)  # noqa: B010 - replaces a method, for this process only


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m everbeat.testing", description="An everbeat command under test.")
    parser.add_argument("--crash-at", action="append", default=[], metavar="[POINT,]POINT[:PASSES]")
    parser.add_argument("--clock-file", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    for wish in asked.crash_at:
        once, _, last = wish.rpartition(",")
        point, _, passes = last.partition(":")
        arm(point, after=int(passes or 0), once=once or None)
    if asked.clock_file:
        _follow_clock_file(asked.clock_file)

    from everbeat.cli.main import main as everbeat

    sys.argv = ["everbeat", *(asked.command[1:] if asked.command[:1] == ["--"] else asked.command)]
    sys.exit(everbeat())


if __name__ == "__main__":
    main()
