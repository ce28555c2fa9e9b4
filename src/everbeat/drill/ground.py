"""Where a drill happens: a directory of its own, and a store that holds no real work."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from everbeat.config import AppConfig, SQLiteConfig, broker_from_url
from everbeat.drill.tasks import QUEUE
from everbeat.model.order import Order
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter
from everbeat.store.open import open_store
from everbeat.store.sqlite.connection import SIDE_FILES
from everbeat.store.sqlite.side import directory_of


class RealWork(Exception):
    """The store holds something that is not of a drill."""


@dataclass(slots=True)
class Ground:
    directory: Path
    url: str
    own_files: tuple[Path, ...] = ()
    """Of a store that was not there before."""
    keep: bool = False
    """Leave everything, for somebody to look at."""


@contextmanager
def ground(db: str | None, *, among_real_work: bool, keep: bool) -> Iterator[Ground]:
    """Removes at the end what it made, unless it is to be kept."""
    directory = Path(tempfile.mkdtemp(prefix="everbeat-drill-"))
    found = Ground(directory, f"sqlite:///{directory}/drill.db", keep=keep)
    try:
        if db is not None:
            found.own_files = _prepare(db, among_real_work=among_real_work)
            found.url = broker_from_url(db, where="--db").url
        yield found
        if db is not None and not found.own_files and not found.keep:
            _remove_tasks(found.url)
    finally:
        if not found.keep:
            for path in found.own_files:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            shutil.rmtree(directory, ignore_errors=True)


def _prepare(db: str, *, among_real_work: bool) -> tuple[Path, ...]:
    """Refuses a store with real work in it. For one that is not there yet: its files, as they will be. A database that
    is empty gets its tables, and keeps them."""
    broker = broker_from_url(db, where="--db")
    if isinstance(broker, SQLiteConfig) and not os.path.exists(broker.path):
        path = Path(broker.path)
        return (path, *(Path(f"{path}{ending}") for ending in SIDE_FILES), directory_of(path))
    with closing(open_store(AppConfig(broker=broker, eager=False, auto_migrate=True))) as store:
        found = real_work(store)
    if found is not None and not among_real_work:
        raise RealWork(found)
    return ()


def real_work(store: Store) -> str | None:
    """What is in the store that is not of a drill, in words."""
    tasks = sum(one.count for one in store.counts() if one.queue != QUEUE)
    workers = len(store.workers(alive_only=True))
    found = [f"{count} {what}" for count, what in ((tasks, "tasks"), (workers, "live workers")) if count]
    return f"{store.location} holds {' and '.join(found)}" if found else None


def _remove_tasks(url: str) -> None:
    with closing(open_store(AppConfig(broker=broker_from_url(url), eager=False), create=False)) as store:
        for _ in store.carry_out(Order.PURGE, TaskFilter(queues=[QUEUE]), actor="everbeat drill"):
            pass
