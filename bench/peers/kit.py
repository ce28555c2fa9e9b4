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
    look: Callable[[], object], *, worker: "subprocess.Popen[bytes]", seconds: float, every: float = 0.002
) -> None:
    """Gives up early if the worker has ended."""
    give_up = time.monotonic() + seconds
    while not look():
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended with exit code {worker.returncode}")
        if time.monotonic() > give_up:
            raise TimeoutError(f"what was waited for did not happen in {seconds:.0f} seconds")
        time.sleep(every)


def _write_once(path: Path) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    os.write(fd, f"{time.monotonic_ns()}\n".encode())
    os.close(fd)
