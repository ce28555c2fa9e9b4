"""An application with something around its tasks. What happens is written to the file `ledger`, one line each."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from everbeat import Everbeat, RetryPolicy, SQLiteConfig, current_task
from everbeat.config import AppConfig
from everbeat.current import CurrentTask

HERE = Path(os.environ["LEDGER"]).parent
app = Everbeat(AppConfig(broker=SQLiteConfig(HERE / "jobs.db")))
outer: ContextVar[str] = ContextVar("outer", default="nothing")


def note(word: str) -> None:
    with open(os.environ["LEDGER"], "a") as ledger:
        ledger.write(f"{os.getpid()} {word}\n")


@app.on_child_start
def first() -> None:
    if (HERE / "broken").exists():
        raise RuntimeError("the pool can not be opened")
    note("start first")


@app.on_child_start
async def second() -> None:
    await asyncio.sleep(0)
    note("start second")


@app.on_child_stop
def stop_first() -> None:
    note("stop first")


@app.on_child_stop
async def stop_second() -> None:
    await asyncio.sleep(0)
    note("stop second")
    raise RuntimeError("told on stderr, and nobody else suffers")


@app.around_task
@contextmanager
def outermost(task: CurrentTask) -> Iterator[None]:
    note(f"enter outermost {task.name} {task.attempt}")
    token = outer.set("outermost")
    try:
        yield
    except ValueError as error:
        note(f"outermost saw {error}")
    finally:
        outer.reset(token)
        note("leave outermost")


@app.around_task
async def only_async(task: CurrentTask) -> AsyncIterator[None]:
    note("enter async")
    await asyncio.sleep(0)
    try:
        yield
    finally:
        await asyncio.sleep(0)
        note("leave async")


@app.around_task
def innermost(task: CurrentTask) -> Iterator[None]:
    note(f"enter innermost in {outer.get()}")
    try:
        yield
    except ValueError:
        note("innermost swallows")
    note("leave innermost")


@app.task(name="add")
def add(a: int, b: int) -> int:
    note(f"add in {outer.get()}")
    return a + b


@app.task(name="later")
async def later(n: int) -> int:
    note(f"later in {outer.get()}")
    return n


@app.task(name="fails", retry=RetryPolicy(max_attempts=2, base_seconds=0))
def fails() -> None:
    raise ValueError("no good")


@app.task(name="lies")
def lies() -> int:
    return "not a number"  # type: ignore[return-value]


@app.task(name="reports")
def reports(many: int) -> str | None:
    task = current_task()
    for n in range(many):
        task.progress(n, many, "counting")
    until(lambda: (HERE / "seen").exists())
    task.progress(many, many, "done")
    task.heartbeat()
    return task.worker_id


@app.task(name="areports")
async def areports() -> None:
    current_task().progress(0.5)


@app.task(name="counts")
def counts() -> str:
    current_task().progress(Fraction(1, 2), Decimal("1.5"))  # type: ignore[arg-type]
    return "counted"


@app.task(name="acounts")
async def acounts() -> str:
    current_task().progress(Fraction(1, 2), Decimal("1.5"))  # type: ignore[arg-type]
    return "counted"


@app.task(name="bad_progress")
def bad_progress() -> list[str]:
    said = []
    for words in (("x",), (float("nan"),), (1, float("inf")), (1, 2, 3)):
        try:
            current_task().progress(*words)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            said.append(type(error).__name__)
    return said


@app.task(name="threads")
def threads() -> bool:
    found: list[bool] = []
    context = copy_context()
    thread = threading.Thread(target=lambda: found.append(context.run(lambda: current_task().is_cancelled())))
    thread.start()
    thread.join()
    return found[0]


def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        time.sleep(0.01)
