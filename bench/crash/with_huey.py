"""Huey on SQLite. Safe: tasks in processes, three retries. There is no acknowledgement that one could switch on."""

import sqlite3
import sys
from pathlib import Path

from huey import SqliteHuey
from huey.exceptions import TaskException

from bench.crash import kit

PATH = kit.DIRECTORY / "huey.db"
huey = SqliteHuey("crash", filename=str(PATH))


@huey.task(retries=3 if kit.IS_SAFE else 0)
def work(number: int, seconds: float, deed: str) -> str:
    return kit.body(number, seconds, deed)


def prepare() -> None:
    huey.storage.initialize_schema()


def send(number: int, seconds: float, deed: str) -> str:
    return work(number, seconds, deed).id


def worker() -> list[str]:
    return [str(Path(sys.executable).parent / "huey_consumer"), f"{__name__}.huey", "-w", str(kit.SLOTS), "-k",
            "process" if kit.IS_SAFE else "thread", "-q"]  # fmt: skip


def states(ids: list[str]) -> dict[str, str]:
    with sqlite3.connect(f"file:{PATH}?mode=ro", uri=True) as connection:
        queued = [bytes(data) for (data,) in connection.execute("SELECT data FROM task")]
    waiting = {huey.deserialize_task(data).id: "waiting" for data in queued}
    return waiting | {key: state for key in ids if (state := _ended(key))}


def _ended(id: str) -> str | None:
    try:
        return None if huey.result(id, preserve=True) is None else "done"
    except TaskException:
        return "failed"
