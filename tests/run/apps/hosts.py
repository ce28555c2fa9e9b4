"""The application of workers that are, or seem to be, on several hosts.

Each run writes one line when it starts, ends, or is told to stop; a task waits until the test opens its gate. All hosts
have one clock: the monotonic one of the kernel under them.
"""

import json
import os
import time
from pathlib import Path

from everbeat import AppConfig, Everbeat, PostgresConfig, RecoveryConfig, RetryPolicy, current_task
from everbeat.errors import TaskInterrupted

PLACE = Path(os.environ.get("HOSTS_PLACE", "."))
PAUSE = 0.01


def make_app(url: str, **recovery: object) -> Everbeat:
    app = Everbeat(AppConfig(broker=PostgresConfig(url), recovery=RecoveryConfig(**recovery)))  # type: ignore[arg-type]
    app.task(name="again", retry=RetryPolicy(max_attempts=9))(waits)
    app.task(name="once")(waits)
    app.task(name="shows", retry=RetryPolicy(max_attempts=9))(shows)
    return app


def note(word: str) -> None:
    task = current_task()
    line = f"{task.id} {task.fence} {time.monotonic_ns()} {word}\n"
    fd = os.open(PLACE / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def waits(gate: str) -> int:
    """The fence of the run whose result it is."""
    note("start")
    try:
        while not (PLACE / gate).exists():
            time.sleep(PAUSE)
    except TaskInterrupted:
        note("told")
        raise
    note("end")
    return current_task().fence


def shows(gate: str) -> int:
    """That it lives, again and again."""
    note("start")
    while not (PLACE / gate).exists():
        note("lives")
        time.sleep(5 * PAUSE)
    note("end")
    return current_task().fence


if "HOSTS_URL" in os.environ:
    app = make_app(os.environ["HOSTS_URL"], **json.loads(os.environ.get("HOSTS_RECOVERY", "{}")))
