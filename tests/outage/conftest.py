"""A server of their own, which these tests may stop, kill and fill up; and a yard over a new database of it.

It is of another version than the one that the other tests use: so every run works with two of them.
"""

from collections.abc import Iterator

import pytest
from tests.crash.conftest import make_yard, yard
from tests.outage.proxy import Proxy
from tests.postgres import OTHER, Cluster

__all__ = ["cluster", "make_yard", "proxy", "server", "store_url", "yard"]


@pytest.fixture(scope="session")
def server() -> Iterator[Cluster]:
    server = Cluster(version=OTHER, max_connections="60")
    yield server
    server.remove()


@pytest.fixture
def cluster(server: Cluster) -> Iterator[Cluster]:
    """The server; it runs again after each test."""
    yield server
    if not server.is_running:
        server.start()


@pytest.fixture
def store_url(cluster: Cluster) -> str:
    return cluster.new_database()


@pytest.fixture
def proxy(store_url: str) -> Iterator[Proxy]:
    """A line to the yard's database that can be cut."""
    line = Proxy(store_url)
    yield line
    line.close()
