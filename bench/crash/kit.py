"""What the adapters of all systems share. Standard library only: it is imported into each system's environment.

Two files tell the story and owe nothing to the store that is tried, each line in one appending write: `accepted` has a
line for each sending that returned, `ledger` one for each begin and each end of a run.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

URL = os.environ.get("CRASH_URL", "")
VARIANT = os.environ.get("CRASH_VARIANT", "default")
DIRECTORY = Path(os.environ.get("CRASH_DIRECTORY", "."))
WORKER = os.environ.get("CRASH_WORKER", "")
"""The name of the worker's place; one that is started again in it has the same."""
IS_SAFE = VARIANT == "safe"
SLOTS = 4
"""How many tasks a worker runs at once."""
LEDGER = DIRECTORY / "ledger"
ACCEPTED = DIRECTORY / "accepted"

POISON = "poison"
"""The deed of a sending whose first task kills the process it runs in, after a second, while the others go on."""
CULPRIT = 0
CULPRIT_SECONDS = 1.0


def body(number: int, seconds: float, deed: str) -> str:
    """The task, of systems that run functions. What it returns names this run."""
    run = _begin(number)
    if _kills(number, deed):
        time.sleep(CULPRIT_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)
    return _end(number, run)


async def async_body(number: int, seconds: float, deed: str) -> str:
    """The same, of systems that run coroutines."""
    run = _begin(number)
    if _kills(number, deed):
        await asyncio.sleep(CULPRIT_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(seconds)
    return _end(number, run)


def _kills(number: int, deed: str) -> bool:
    return deed == POISON and number == CULPRIT


def _begin(number: int) -> str:
    now = time.monotonic_ns()
    run = f"{os.getpid()}.{now}"
    append(LEDGER, f"{now} {number} {run} {WORKER} begin")
    return run


def _end(number: int, run: str) -> str:
    append(LEDGER, f"{time.monotonic_ns()} {number} {run} {WORKER} end")
    return run


def append(path: Path, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


def lines(path: Path) -> list[list[str]]:
    """The words of every complete line."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [line.split(" ") for line in text[: text.rfind("\n") + 1].splitlines()]
