"""What the tests of the store share: time that stands still until told, and the words of a task's life.

Every test in `contract/` takes `open_store` or `store`, so every one of them runs on both kinds of store.
"""

import compileall
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.postgres import EmptyDatabase, servers_url, stop_server
from tests.words import VirtualClock

import everbeat
from everbeat.store.interface import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SQLiteStore

settings.register_profile("everbeat", deadline=None)  # how long an example takes depends on who else is busy
settings.load_profile("everbeat")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background has them ignore it, and so would every command that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

PLACE = "EVERBEAT_TEST_PLACE"
SHARED = pytest.StashKey[Path]()
"""The place, also for a test that has emptied its environment before it asks for the server."""
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
OpenStore = Callable[[], Store]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def pytest_configure(config: pytest.Config) -> None:
    """One place for all processes of this run, where they find the server that they share, and where workers on it keep
    their files.

    The thousands of processes that the tests start find our modules compiled, and those of pytest-xdist may keep what
    they compile, also where the environment says that no bytecode be written.
    """
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(everbeat.__file__).parent, quiet=1)
        place = tempfile.mkdtemp(prefix="everbeat-run-")
        os.environ |= {PLACE: place, "XDG_STATE_HOME": f"{place}/state"}
        for name in (NO_BYTECODE, "XDG_RUNTIME_DIR"):
            os.environ.pop(name, None)
    config.stash[SHARED] = Path(os.environ[PLACE])


@pytest.fixture(scope="session", autouse=True)
def _applications_are_not_compiled_to_files() -> None:
    """A test that writes one again within the same second would be shown the first."""
    os.environ[NO_BYTECODE] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        del os.environ[PLACE]
        stop_server(config.stash[SHARED])


@pytest.fixture(scope="session")
def a_database(pytestconfig: pytest.Config) -> EmptyDatabase:
    return EmptyDatabase(servers_url(pytestconfig.stash[SHARED]))


@pytest.fixture(params=["sqlite", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[OpenStore]:
    """Opens the same store again and again: as many processes would."""
    opened: list[SQLiteStore | PostgresStore] = []

    def open_sqlite() -> Store:
        opened.append(SQLiteStore(tmp_path / "contract.db", durability="normal", clock=clock, patience=2.0))
        return opened[-1]

    def open_postgres() -> Store:
        opened.append(PostgresStore(url, clock=clock, patience=2.0))
        return opened[-1]

    if request.param == "postgres":
        url = request.getfixturevalue("a_database").with_tables()
    yield open_postgres if request.param == "postgres" else open_sqlite
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    return open_store()
