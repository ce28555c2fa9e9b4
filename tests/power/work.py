"""`python work.py DATABASE TRACE DURABILITY SEED STEPS`: work on a store, and write down all that reaches its files.

The trace has a JSON value per line: what was written and synced, and after each transaction that was acknowledged
everything the store then says. So whoever reads it knows at each moment what must survive.
"""

import base64
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from random import Random
from typing import IO

from tests.power.vfs import Op, Recorder
from tests.words import (
    a_task,
    claim,
    completed,
    failed,
    handed_back,
    register,
    requeue,
    retried,
    settle,
    succeeded,
)

from everbeat.config import AppConfig, SQLiteConfig
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.open import open_store

ROWS = """
SELECT id, status, fence, attempt, worker_id, crash_count, lost_count, hex(args), hex(result), error_code,
       (SELECT count(*) FROM everbeat_attempts a WHERE a.task_id = t.id),
       (SELECT count(*) FROM everbeat_history h WHERE h.task_id = t.id)
  FROM everbeat_tasks t ORDER BY seq"""


def state_of(path: Path) -> list[list[object]]:
    """Everything the store says of its tasks."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        return [list(row) for row in connection.execute(ROWS)]


class Work:
    """A sender and a worker, on connections of their own, that do what chance says."""

    def __init__(self, path: Path, trace: IO[str], durability: str, seed: int) -> None:
        self._path = path
        self._trace = trace
        self._chance = Random(seed)
        self._config = AppConfig(broker=SQLiteConfig(path, durability=durability))  # type: ignore[arg-type]
        self._held: list[Claim] = []
        self._sent = 0

    def run(self, steps: int) -> None:
        done = 0
        while done < steps:
            with closing(open_store(self._config)) as sender, closing(open_store(self._config)) as worker:
                worker_id = register(worker, f"worker-{done}", processes=4)
                self._acknowledged("register")
                for _ in range(self._chance.randrange(steps // 4, steps // 2)):
                    self._step(sender, worker, worker_id)
                    done += 1
                self._give_up(worker, worker_id)

    def _step(self, sender: Store, worker: Store, worker_id: str) -> None:
        deed = self._chance.choices(("send", "claim", "settle", "beat", "checkpoint"), (5, 4, 6, 2, 1))[0]
        if deed == "send":
            sizes = [self._chance.choice((2, 50, 3_000, 30_000)) for _ in range(self._chance.choice((1, 1, 3, 20)))]
            sender.enqueue([a_task(id=f"task-{self._sent + n}", args=b"[" + b"1" * size + b"]", max_attempts=3)
                            for n, size in enumerate(sizes)])  # fmt: skip
            self._sent += len(sizes)
        elif deed == "claim":
            self._held += claim(worker, worker_id, self._chance.randrange(1, 5))
        elif deed == "settle" and self._held:
            self._settle(worker, self._held.pop(self._chance.randrange(len(self._held))))
        elif deed == "beat":
            worker.beat(worker_id, [])
        elif deed == "checkpoint":
            worker.checkpoint()
        self._acknowledged(deed)

    def _settle(self, worker: Store, held: Claim) -> None:
        result = b'"' + b"r" * self._chance.choice((1, 100, 20_000)) + b'"'
        verdict, outcome = self._chance.choice(
            ((completed(result), succeeded(result)), (failed(), None), (retried(), None), (handed_back(), None))
        )
        settle(worker, held, verdict, outcome=outcome)

    def _give_up(self, worker: Store, worker_id: str) -> None:
        """The worker is found dead, and what it held goes back."""
        worker.declare_dead(worker_id, reason="gone", cause="test")
        self._acknowledged("declare dead")
        for held in self._held:
            requeue(worker, held)
            self._acknowledged("recover")
        self._held = []

    def _acknowledged(self, deed: str) -> None:
        self._trace.write(json.dumps({"acknowledged": deed, "state": state_of(self._path)}) + "\n")


def main(path: Path, trace: Path, durability: str, seed: int, steps: int) -> None:
    with trace.open("w") as file:

        def hear(op: Op) -> None:
            file.write(json.dumps([op.what, op.file, op.offset, base64.b64encode(op.data).decode()]) + "\n")

        Recorder(str(path), hear)
        Work(path, file, durability, seed).run(steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
