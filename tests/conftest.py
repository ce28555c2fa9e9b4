"""What the tests of the store share: time that stands still until told, and the words of a task's life.

Every test in `contract/` takes `open_store` or `store`, so a second kind of store is one more parameter here.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.words import VirtualClock

from everbeat.store.interface import Store
from everbeat.store.sqlite.store import SQLiteStore

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background has them ignore it, and so would every command that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

OpenStore = Callable[[], Store]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[OpenStore]:
    """Opens the same store again and again: as many processes would."""
    opened: list[SQLiteStore] = []

    def open_sqlite() -> Store:
        opened.append(SQLiteStore(tmp_path / "contract.db", durability="normal", clock=clock, patience=2.0))
        return opened[-1]

    assert request.param == "sqlite"
    yield open_sqlite
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()
