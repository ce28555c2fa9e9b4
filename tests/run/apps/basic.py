"""A small application for the process tests: what a child needs of an app, and tasks that behave in every bad way."""

import asyncio
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from everbeat.current import current_task
from everbeat.errors import PayloadError, ResultTooLarge, TaskInterrupted
from everbeat.hooks import Hooks

LIMIT = 17 << 20


class FakeTask:
    sensitive = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.is_async = asyncio.iscoroutinefunction(function)

    def decode_args(self, raw: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            return tuple(msgspec.json.decode(raw, type=list)), {}
        except msgspec.DecodeError as error:
            raise PayloadError(str(error)) from error

    def encode_result(self, value: Any) -> bytes:
        try:
            encoded = msgspec.json.encode(value)
        except TypeError as error:
            raise PayloadError(str(error)) from error
        if len(encoded) > LIMIT:
            raise ResultTooLarge(f"{len(encoded)} bytes")
        return encoded

    def secrets_in(self, raw: bytes) -> frozenset[str]:
        return frozenset()


class FakeApp:
    def __init__(self) -> None:
        self.tasks: dict[str, FakeTask] = {}
        self.imports: list[str] = []
        self.hooks = Hooks()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.tasks[function.__name__] = FakeTask(function)
        return function

    def worker_facts(self) -> dict[str, Any]:
        return {"store_url": "sqlite:////tmp/x.db", "answer": 42}


app = FakeApp()
_counted = 0


@app.task
def noop() -> None:
    pass


@app.task
def echo(value: Any) -> Any:
    return value


@app.task
def nap(seconds: float) -> None:
    time.sleep(seconds)


@app.task
def whoami() -> dict[str, Any]:
    task = current_task()
    return {"id": task.id, "name": task.name, "attempt": task.attempt, "fence": task.fence, "crashes": task.crash_count}


@app.task
def process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "parent": os.getppid(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "sockets": sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in _fds()),
        "pipes": sum(os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:") for fd in _fds()),
        "inherited_by_exec": [fd for fd in _fds() if fd > 2 and os.get_inheritable(fd)],
    }


def _fds() -> list[int]:
    return [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]


@app.task
def segfault() -> None:
    ctypes.string_at(0)


@app.task
def leave(status: int) -> None:
    os._exit(status)


@app.task
def sys_exit() -> None:
    sys.exit(3)


@app.task
def ctrl_c() -> None:
    raise KeyboardInterrupt


@app.task
def fail(message: str) -> None:
    raise ValueError(message)


@app.task
def fail_oddly() -> None:
    raise ValueError("n\0o \udcff" + "x" * 100_000)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@app.task
def unspeakable() -> None:
    raise Unspeakable


@app.task
def bad_result() -> object:
    return object()


@app.task
def huge_result() -> str:
    return "x" * (LIMIT + 1)


@app.task
def stop_signals() -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    return "alive"


@app.task
def fork_and_return() -> int:
    pid = os.fork()
    return pid or -1


@app.task
def fork_and_raise() -> int:
    pid = os.fork()
    if pid == 0:
        sys.exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@app.task
def start_sleeper() -> int:
    """Leaves a program behind that holds every fd it can get."""
    return subprocess.Popen(["sleep", "1000"], close_fds=False).pid


@app.task
def fork_sleeper() -> int:
    """Leaves a forked process behind that holds all our fds."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid


@app.task
def say_and_sleep(path: str) -> None:
    _say(path, os.getpid())
    time.sleep(1000)


@app.task
def hold_gil(path: str) -> None:
    sleeper = subprocess.Popen(["sleep", "1000"])
    _say(path, os.getpid(), sleeper.pid)
    all(itertools.repeat(True, 10**12))


@app.task
def stubborn(path: str) -> str:
    try:
        _say(path, os.getpid())
        time.sleep(1000)
    except TaskInterrupted as interrupted:
        return f"cleaned up after {type(interrupted).__name__}"
    return "not interrupted"


def _say(path: str, *pids: int) -> None:
    """To a FIFO that the test reads: it knows that the task runs, and who does."""
    with open(path, "w") as fifo:
        fifo.write(" ".join(map(str, pids)))


@app.task
async def anoop() -> None:
    pass


@app.task
async def acount() -> int:
    """How many of these run at once, with this one."""
    global _counted
    _counted += 1
    seen = _counted
    await asyncio.sleep(0.002)
    _counted -= 1
    return seen


@app.task
async def aecho(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


@app.task
async def await_ever(path: str) -> None:
    _say(path, os.getpid())
    await asyncio.sleep(1000)


@app.task
async def asys_exit() -> None:
    sys.exit(3)


@app.task
async def afork() -> int:
    pid = os.fork()
    await asyncio.sleep(0)
    return os.waitpid(pid, 0)[1] if pid else -1


@app.task
async def asegfault() -> None:
    ctypes.string_at(0)
