"""The work that is measured. A worker is told its store by `--db`; a sender builds a twin of the application."""

import os
import time
from dataclasses import dataclass

from everbeat import Everbeat, Task


@dataclass(frozen=True)
class Works:
    app: Everbeat
    noop: Task[[int, int], int]
    async_noop: Task[[int, int], int]
    gather: Task[..., int]
    stamp: Task[[str], None]
    stamp_and_stay: Task[[str, float], None]
    stamp_and_die: Task[[str], None]


def build(url: str) -> Works:
    app = Everbeat(url)

    @app.task(name="bench.noop")
    def noop(a: int, b: int) -> int:
        return a + b

    @app.task(name="bench.async_noop")
    async def async_noop(a: int, b: int) -> int:
        return a + b

    @app.task(name="bench.gather")
    def gather(*numbers: int) -> int:
        return sum(numbers)

    @app.task(name="bench.stamp")
    def stamp(path: str) -> None:
        say(path)

    @app.task(name="bench.stamp_and_stay", on_crash="retry")
    def stamp_and_stay(path: str, seconds: float) -> None:
        say(path)
        time.sleep(seconds)

    @app.task(name="bench.stamp_and_die", on_crash="retry")
    def stamp_and_die(path: str) -> None:
        """Dies the first time."""
        say(path)
        if len(read(path)) == 1:
            os.kill(os.getpid(), 9)

    return Works(app, noop, async_noop, gather, stamp, stamp_and_stay, stamp_and_die)


def say(path: str) -> None:
    """One line: when, by the monotonic clock, and which process. Making a file is not part of it."""
    now = time.monotonic_ns()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{now} {os.getpid()}\n".encode())
    os.close(fd)


def read(path: str | os.PathLike[str]) -> list[tuple[int, int]]:
    try:
        with open(path) as file:
            return [(int(at), int(pid)) for at, pid in (line.split() for line in file)]
    except FileNotFoundError:
        return []


app = build("sqlite:///everbeat-bench.db").app
