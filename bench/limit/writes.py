"""The statements of the floor, for both databases, and the loops that run them."""

import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

NAME = "bench.noop"
ARGS = b'{"a":1,"b":2}'
TABLE = """
CREATE TABLE floor_tasks (
    seq {serial}, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, queue TEXT NOT NULL, priority BIGINT NOT NULL,
    status TEXT NOT NULL DEFAULT 'PENDING', fence BIGINT NOT NULL DEFAULT 0, worker_id TEXT,
    attempt BIGINT NOT NULL DEFAULT 0, max_attempts BIGINT NOT NULL DEFAULT 1, created_at BIGINT NOT NULL,
    run_at BIGINT NOT NULL, started_at BIGINT, finished_at BIGINT, policy TEXT, args {blob} NOT NULL, result {blob})"""
INDEXES = (
    "CREATE INDEX floor_ready ON floor_tasks (queue, name, priority, seq) WHERE status = 'PENDING'",
    "CREATE INDEX floor_owned ON floor_tasks (worker_id) WHERE status IN ('CLAIMED', 'RUNNING')",
    "CREATE INDEX floor_ended ON floor_tasks (queue, status, finished_at) WHERE finished_at IS NOT NULL",
)
BATCHES = {"drain.sync.single": 2, "drain.sync.frames": 128, "drain.async": 300}
"""How many tasks Everbeat settles and starts in one transaction when it is busy, with two slots or 1,000 async ones."""


class Writer(Protocol):
    """One connection to a database with the table in it."""

    def insert(self, rows: list[tuple[Any, ...]]) -> None:
        """All in one durable transaction."""

    def turn(self, ended: list[int], limit: int) -> list[int]:
        """Settle these, claim and start so many more, in one durable transaction; the seqs of the latter."""


def rows(count: int) -> list[tuple[Any, ...]]:
    now = time.time_ns() // 1000
    return [(str(uuid.uuid4()), NAME, "default", 100, now, now, ARGS) for _ in range(count)]


def single(writer: Writer, count: int) -> float:
    given = rows(count)
    return per_second(count, lambda: [writer.insert([row]) for row in given])


def together(writer: Writer, count: int, batch: int) -> float:
    given = rows(count)
    return per_second(count, lambda: [writer.insert(given[at : at + batch]) for at in range(0, count, batch)])


def drain(writer: Writer, count: int, batch: int) -> float:
    writer.insert(rows(count))

    def work() -> None:
        held = writer.turn([], batch)
        while held:
            held = writer.turn(held, batch)

    return per_second(count, work)


def per_second(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def samples(writer: Writer, scale: float) -> dict[str, list[float]]:
    """By the key of the measure of Everbeat that it is the floor of."""
    some, many = max(100, round(2_000 * scale)), max(1_000, round(50_000 * scale))
    found = {
        "enqueue.single": [single(writer, some) for _ in range(5)],
        "enqueue.threads.16": [together(writer, max(320, round(8_000 * scale)), 16) for _ in range(5)],
        "enqueue.bulk": [together(writer, many, many) for _ in range(5)],
    }
    _finish(writer)
    for key, batch in BATCHES.items():
        count = max(200, round((4_000 if batch < 10 else 30_000) * scale))
        found[key] = [drain(writer, count, batch) for _ in range(3)]
    return found


def _finish(writer: Writer) -> None:
    held = writer.turn([], 10_000)
    while held:
        held = writer.turn(held, 10_000)
