"""What the adapters of all peers share. Standard library only: it is imported into each peer's environment."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

URL = os.environ.get("BENCH_URL", "")
VARIANT = os.environ.get("BENCH_VARIANT", "default")
DIRECTORY = Path(os.environ.get("BENCH_DIRECTORY", "."))
FIRST = DIRECTORY / "first"
FIRST_WAIT = 0.02
SHORTEST_WAIT = 0.005
LONGEST_WAIT = 0.2

_has_begun = False


def began() -> None:
    """Said by every task: the first one of a run leaves a mark. Costs the others a look at a variable."""
    global _has_begun
    if not _has_begun:
        _has_begun = True
        _write_once(FIRST)


def stamp(path: str) -> None:
    """Said by a task whose begin is waited for."""
    _write_once(Path(path))


def stamp_of(path: Path) -> int | None:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    return int(text) if text.endswith("\n") else None


def until(
    look: Callable[[], object],
    *,
    worker: "subprocess.Popen[bytes]",
    seconds: float,
    every: Callable[[], float] = lambda: 0.002,
) -> None:
    """Gives up early if the worker has ended."""
    give_up = time.monotonic() + seconds
    while not look():
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended with exit code {worker.returncode}")
        if time.monotonic() > give_up:
            raise TimeoutError(f"what was waited for did not happen in {seconds:.0f} seconds")
        time.sleep(every())


def until_drained(
    finished: Callable[[], int], count: int, *, worker: "subprocess.Popen[bytes]", seconds: float
) -> None:
    """Looks seldom as long as much is left, because looking costs the store something, and often towards the end."""
    seen: tuple[float, int] | None = None
    wait = FIRST_WAIT

    def is_drained() -> bool:
        nonlocal seen, wait
        now, done = time.monotonic(), finished()
        if seen is None and done > 0:
            seen = now, done
        elif seen is not None and done > seen[1]:
            wait = next_look(now - seen[0], done - seen[1], count - done)
        return done >= count

    until(is_drained, worker=worker, seconds=seconds, every=lambda: wait)


def next_look(passed: float, done: int, left: int) -> float:
    """Half of the time that the rest will take if it goes on like this."""
    return min(LONGEST_WAIT, max(SHORTEST_WAIT, 0.5 * left * passed / done))


def _write_once(path: Path) -> None:
    """When it was said: making a file is not part of it."""
    now = time.monotonic_ns()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    os.write(fd, f"{now}\n".encode())
    os.close(fd)
