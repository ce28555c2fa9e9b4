"""The application that the crash tests run and kill.

Every run writes to the ledger before anything else that it started, and that it ended as its last act: one line, one
write, so the ledger is whole whatever kills the process. A task returns the fence it ran under, so a stored result says
which run it came from. Gates are files: a task waits at one until the test makes it.

The names say what may happen to a task: one that `again` is part of may be run again after a crash, others never.
"""

import asyncio
import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

from everbeat import (
    AppConfig,
    Everbeat,
    PostgresConfig,
    QueueConfig,
    RecoveryConfig,
    RetryPolicy,
    SQLiteConfig,
    current_task,
)
from everbeat.errors import TaskInterrupted

PAUSE = 0.01
SOON = 30.0
"""The exception follows what a task may ask for. One that comes between two lines would be no proof of anything."""
TIMEOUT = 0.3
HOARD: list[bytes] = []


def make_app() -> Everbeat:
    """The application, over the yard that the environment names."""
    yard = Path(os.environ.get("YARD", "."))
    recovery = RecoveryConfig(**json.loads(os.environ.get("YARD_RECOVERY", "{}")))
    queues = [QueueConfig(name, **limits) for name, limits in json.loads(os.environ.get("YARD_QUEUES", "{}")).items()]
    more = json.loads(os.environ.get("YARD_CONFIG", "{}"))
    url = os.environ.get("YARD_URL")
    broker = PostgresConfig(url) if url else SQLiteConfig(yard / "yard.db")
    app = Everbeat(AppConfig(broker=broker, recovery=recovery, queues=queues, **more))
    again = {"retry": RetryPolicy(max_attempts=50, base_seconds=0.05, max_seconds=0.2), "max_recovery_attempts": 100}
    after_crashes = {"on_crash": "retry"}
    for function in (
        quick, work, gated, held_gil, exits, faults, leaves, interrupts_itself, forks, forks_and_stays, stops_forked,
        starts_program, heeds, heeds_not, maybe, a_quick, a_gated, counts, returns_late, asks, asks_in_a_thread, a_asks,
        a_heeds_not, a_blocks, a_cancels, grows, marks, a_marks, joins, lists,
    ):  # fmt: skip
        app.task(name=function.__name__)(function)
    for function in (quick, work, gated, marks, heeds, a_quick, a_gated, a_marks, joins):
        app.task(name=f"{function.__name__}_again", **again)(function)
    for function in (kills_itself, gated_then_patient, a_kills_itself, a_dies_once, fails_at_once, needs):
        app.task(name=function.__name__, **after_crashes)(function)
    for function in (maybe, heeds, heeds_not, counts, returns_late, a_gated, a_heeds_not, a_blocks):
        app.task(name=f"timed_{function.__name__}", timeout=TIMEOUT)(function)
    app.task(name="timed_heeds_twice", timeout=TIMEOUT, retry=RetryPolicy(max_attempts=2, base_seconds=0))(heeds)
    app.task(name="isolated", isolated=True)(quick)
    app.task(name="a_isolated", isolated=True)(a_quick)
    app.task(name="fails_twice", retry=RetryPolicy(max_attempts=5, base_seconds=0.2, jitter=False))(fails_twice)
    app.task(name="fails_always", retry=RetryPolicy(max_attempts=3, base_seconds=0.05))(fails_always)
    for name in os.environ.get("YARD_WITHOUT", "").split():
        app._tasks.pop(name)  # an application from before the task was written
    return app


# -- the ledger and the gates -----------------------------------------------------------------------------------------


def note(word: str) -> None:
    task = current_task()
    line = f"{time.monotonic_ns()} {os.getpid()} {task.id} {task.name} {task.attempt} {task.fence} {word}\n"
    fd = os.open(Path(os.environ["YARD"]) / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


@contextmanager
def on_record() -> Iterator[int]:
    note("start")
    yield current_task().fence
    note("end")


def is_open(gate: str) -> bool:
    return (Path(os.environ["YARD"]) / "gates" / gate).exists()


def wait_at(gate: str) -> None:
    while not is_open(gate):
        time.sleep(PAUSE)


def supervisor_pid() -> int:
    """The parent of the fork server, which is our parent."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])


# -- ordinary tasks ---------------------------------------------------------------------------------------------------


def quick() -> int:
    with on_record() as fence:
        return fence


def work(seconds: float = 0.004) -> int:
    with on_record() as fence:
        time.sleep(seconds)
        return fence


def gated(gate: str) -> int:
    with on_record() as fence:
        wait_at(gate)
        return fence


def gated_then_patient(gate: str) -> int:
    return gated(gate)


def maybe(gate: str | None = None, freeze: bool = False) -> int:
    """Quick without a gate, so that tasks of this name are framed. `freeze` stops the supervisor, which then can not
    read back what waits behind this one."""
    with on_record() as fence:
        if freeze:
            time.sleep(0.005)  # the frame is sent, and 20 ms have not passed
            os.kill(supervisor_pid(), signal.SIGSTOP)
        if gate is not None:
            wait_at(gate)
        return fence


def marks(gate: str | None = None, seconds: float = 0.0) -> int:
    """Says all the time that it runs, until the gate is open or the time is over."""
    with on_record() as fence:
        until = time.monotonic() + seconds
        while not is_open(gate) if gate is not None else time.monotonic() < until:
            note("mark")
            time.sleep(0.002)
        return fence


async def a_marks(gate: str) -> int:
    with on_record() as fence:
        while not is_open(gate):
            note("mark")
            await asyncio.sleep(0.002)
        return fence


def joins(*inputs: Any) -> int:
    """A node of a workflow: whatever others have resulted in."""
    return quick()


def lists(length: int) -> list[int]:
    with on_record():
        return list(range(length))


async def a_quick() -> int:
    with on_record() as fence:
        return fence


async def a_gated(gate: str) -> int:
    with on_record() as fence:
        while not is_open(gate):
            await asyncio.sleep(PAUSE)
        return fence


# -- tasks that misbehave ---------------------------------------------------------------------------------------------


def kills_itself(gate: str | None = None) -> None:
    note("start")
    if gate is not None:
        wait_at(gate)
    os.kill(os.getpid(), signal.SIGKILL)


async def a_kills_itself(gate: str) -> None:
    note("start")
    while not is_open(gate):
        await asyncio.sleep(PAUSE)
    os.kill(os.getpid(), signal.SIGKILL)


async def a_dies_once() -> int:
    """A single death makes it a suspect: it is then started alone, in a process of its own."""
    with on_record() as fence:
        if current_task().crash_count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return fence


def exits(code: int) -> None:
    note("start")
    os._exit(code)


def faults() -> None:
    note("start")
    ctypes.string_at(0)


def leaves() -> None:
    note("start")
    raise SystemExit(3)


def interrupts_itself() -> None:
    note("start")
    raise KeyboardInterrupt


def forks() -> int:
    """Both processes return from here; only one of them has the task."""
    with on_record() as fence:
        os.fork()
        return fence


def forks_and_stays(gate: str) -> int:
    """Leaves a forked process behind, which inherits everything that is open."""
    with on_record() as fence:
        pid = os.fork()
        if pid == 0:
            while True:
                time.sleep(1)
        note(f"left:{pid}")
        wait_at(gate)
        return fence


def stops_forked() -> int:
    """Ends processes as it starts them, as the end of `with multiprocessing.Pool()` may, and waits for them."""
    with on_record() as fence:
        for _ in range(20):
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            process.start()
            process.terminate()
            process.join()
        return fence


def starts_program() -> int:
    with on_record() as fence:
        program = subprocess.Popen(["sleep", "600"])
        note(f"left:{program.pid}")
        program.returncode = 0  # not our child any more, as far as Popen is concerned
        return fence


def held_gil(seconds: int) -> int:
    with on_record() as fence:
        ctypes.PyDLL(None).sleep(seconds)
        return fence


def counts() -> int:
    """C code that holds the GIL and looks at no signals: no exception reaches it."""
    note("start")
    return sum(range(10**15))


def heeds(gate: str) -> int:
    """Stops when it is told to."""
    note("start")
    try:
        wait_at(gate)
    except TaskInterrupted:
        note("interrupted")
        raise
    note("end")
    return current_task().fence


def heeds_not(gate: str) -> int:
    """Goes on when it is told to stop."""
    with on_record() as fence:
        while True:
            try:
                wait_at(gate)
            except TaskInterrupted:
                note("interrupted")
            else:
                return fence


def returns_late(gate: str) -> int:
    """Is told to stop, and has a result all the same."""
    with on_record() as fence:
        try:
            wait_at(gate)
        except TaskInterrupted:
            note("interrupted")
        return fence


async def a_heeds_not(gate: str) -> int:
    with on_record() as fence:
        while not is_open(gate):
            try:
                await asyncio.sleep(PAUSE)
            except asyncio.CancelledError:
                note("interrupted")
        return fence


async def a_blocks(seconds: int) -> int:
    """Nothing else runs in this process meanwhile, not even what would tell it to stop."""
    with on_record() as fence:
        ctypes.PyDLL(None).sleep(seconds)
        return fence


def asks() -> int:
    """Works until somebody wants it to stop, and is in the middle of something when an exception comes."""
    with on_record() as fence:
        with suppress(TaskInterrupted):
            while not current_task().is_cancelled():
                time.sleep(PAUSE)
            time.sleep(SOON)
        note("asked")
        return fence


def asks_in_a_thread() -> int:
    """What no exception reaches can ask."""
    with on_record() as fence:
        asked: list[bool] = []
        threading.Thread(target=copy_context().run, args=(_wait_until_cancelled, asked)).start()
        with suppress(TaskInterrupted):
            while not asked:
                time.sleep(PAUSE)
            time.sleep(SOON)
        while not asked:
            time.sleep(PAUSE)
        return fence


def _wait_until_cancelled(asked: list[bool]) -> None:
    while not current_task().is_cancelled():
        time.sleep(PAUSE)
    note("asked")
    asked.append(True)


async def a_asks() -> int:
    with on_record() as fence:
        while not current_task().is_cancelled():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(PAUSE)
        note("asked")
        return fence


async def a_cancels(others: bool) -> int:
    """What asyncio.run() does at its end, done by a task: cancels all that the loop has beside it."""
    with on_record() as fence:
        if others:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        return fence


def grows(megabytes: int) -> int:
    """Leaves its process larger than it was."""
    with on_record() as fence:
        HOARD.append(b"x" * (megabytes << 20))
        return fence


def fails_twice() -> int:
    with on_record() as fence:
        if current_task().attempt <= 2:
            raise ValueError("not yet")
        return fence


def fails_always() -> None:
    note("start")
    raise ValueError("never")


def fails_at_once() -> None:
    fails_always()


def needs(gate: str) -> int:
    """Fails unless the gate is open."""
    with on_record() as fence:
        if not is_open(gate):
            raise ValueError("not yet")
        return fence


app = make_app()
