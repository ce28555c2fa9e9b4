"""Tests that need root and system packages: `make test-system` runs them, other test runs leave them alone."""

import os
from collections.abc import Iterator

import pytest
from tests.postgres import Cluster

collect_ignore_glob = [] if os.environ.get("EVERBEAT_TEST_SYSTEM") else ["test_*.py"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(listen_addresses="*")
    yield cluster
    cluster.remove()
