"""The application of `everbeat drill`: a task of each kind.

Every run writes itself into the ledger and returns its fence, so that the stored result says which run was believed.

Silence is judged as early as the configuration allows. The store is named by EVERBEAT_DATABASE_URL, the ledger by
EVERBEAT_DRILL_LEDGER.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from everbeat import AppConfig, Everbeat, RecoveryConfig, RetryPolicy, current_task
from everbeat.current import CurrentTask
from everbeat.drill.ledger import Word, note
from everbeat.drill.plan import Kind

LEDGER = "EVERBEAT_DRILL_LEDGER"
QUEUE = "everbeat-drill"
PREFIX = "everbeat.drill."
STEP_SECONDS = 0.02

app = Everbeat(
    AppConfig(
        eager=False,
        auto_migrate=True,
        imports=(),
        queues=(),
        recovery=RecoveryConfig(
            runner_heartbeat_interval_ms=1_000,
            claimer_heartbeat_interval_ms=1_000,
            running_stale_threshold_ms=2_000,
            claimed_stale_threshold_ms=2_000,
            check_interval_ms=1_000,
            exclusive_lease_ms=5_000,
            action="retry",
            max_recovery_attempts=3,
        ),
    )
)
AGAIN = RetryPolicy(max_attempts=1_000, backoff="fixed", base_seconds=0.1, max_seconds=0.1, jitter=False)


class Flaw(Exception):
    """What the flaky task raises."""


@contextmanager
def recorded() -> Iterator[CurrentTask]:
    """Begin and end of this run."""
    run = current_task()
    _note(run, Word.BEGIN)
    try:
        yield run
    except Flaw:
        _note(run, Word.RAISE)
        raise
    _note(run, Word.END)


def _note(run: CurrentTask, word: Word) -> None:
    note(os.environ[LEDGER], word, task_id=run.id, attempt=run.attempt, fence=run.fence)


@app.task(name=PREFIX + Kind.ONCE, queue=QUEUE)
def once(work_ms: int) -> int:
    with recorded() as run:
        time.sleep(work_ms / 1000)
        return run.fence


@app.task(name=PREFIX + Kind.AGAIN, queue=QUEUE, retry=AGAIN)
def again(work_ms: int) -> int:
    with recorded() as run:
        time.sleep(work_ms / 1000)
        return run.fence


@app.task(name=PREFIX + Kind.ASYNC, queue=QUEUE, retry=AGAIN)
async def asynchronous(work_ms: int) -> int:
    with recorded() as run:
        await asyncio.sleep(work_ms / 1000)
        return run.fence


@app.task(name=PREFIX + Kind.FLAKY, queue=QUEUE, retry=AGAIN)
def flaky(work_ms: int) -> int:
    with recorded() as run:
        time.sleep(work_ms / 1000)
        if run.attempt == 1:
            raise Flaw("the first attempt of a flaky task")
        return run.fence


@app.task(name=PREFIX + Kind.EXCLUSIVE, queue=QUEUE, retry=AGAIN)
def exclusive(work_ms: int) -> int:
    """Says often that it goes on: two that overlap are seen by that."""
    with recorded() as run:
        give_up = time.monotonic() + work_ms / 1000
        while time.monotonic() < give_up:
            time.sleep(STEP_SECONDS)
            _note(run, Word.GOES_ON)
        return run.fence


@app.task(name=PREFIX + Kind.POISON, queue=QUEUE, retry=AGAIN)
def poison(work_ms: int) -> int:
    with recorded() as run:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # the signal comes at the end of the call; never reached
        return run.fence


def task_of(kind: Kind) -> Any:
    return app.tasks[PREFIX + kind]
