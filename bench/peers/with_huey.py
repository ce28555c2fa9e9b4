"""Huey on SQLite: SqliteHuey, `huey_consumer.py` with threads."""

import sqlite3
import sys
import time
from pathlib import Path

from huey import SqliteHuey

from bench.peers import kit

PATH = kit.DIRECTORY / "huey.db"
STORES_RESULTS = kit.VARIANT == "results"
THREADS = "4" if kit.VARIANT == "4 threads" else "1"
huey = SqliteHuey("bench", filename=str(PATH), fsync=kit.VARIANT != "fsync off")


@huey.task()
def sync_noop(a: int, b: int) -> int | None:
    kit.began()
    return a + b if STORES_RESULTS else None


@huey.task()
def add(a: int, b: int) -> int:
    return a + b


@huey.task()
def stamp(path: str) -> None:
    kit.stamp(path)


def prepare() -> None:
    huey.storage.initialize_schema()


def send(kind: str, count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        sync_noop(1, 2)
    return time.perf_counter() - began


def send_stamp(path: str) -> None:
    stamp(path)


def worker(kind: str) -> list[str]:
    return [str(Path(sys.executable).parent / "huey_consumer"), f"{__name__}.huey", "-w", THREADS,
            "-q"]  # fmt: skip


def finished(count: int) -> int:
    """With results: those that are stored. Else those that have left the queue, which is all that huey stores."""
    with sqlite3.connect(f"file:{PATH}?mode=ro", uri=True) as connection:
        if STORES_RESULTS:
            return int(connection.execute("SELECT count(*) FROM kv").fetchone()[0])
        return count - int(connection.execute("SELECT count(*) FROM task").fetchone()[0])


def results(count: int) -> list[float]:
    samples = []
    for _ in range(count):
        sent = time.monotonic_ns()
        add(1, 2).get(blocking=True)
        samples.append((time.monotonic_ns() - sent) / 1e6)
    return samples
