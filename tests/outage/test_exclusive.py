"""Exclusive keys while the server is gone, or takes everything and answers nothing (PROTOCOL 24)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.test_exclusive import LEASE, overlaps
from tests.crash.yard import Yard, is_alive
from tests.outage.test_frozen import frozen
from tests.postgres import Cluster


@contextmanager
def gone(cluster: Cluster, yard: Yard) -> Iterator[None]:
    cluster.stop()
    yield
    cluster.start()


@pytest.mark.parametrize("outage", [gone, frozen])
def test_an_exclusive_task_is_stopped_before_its_lease_is_over_and_others_finish(
    make_yard: MakeYard, cluster: Cluster, outage: Callable[[Cluster, Yard], AbstractContextManager[None]]
) -> None:
    yard = make_yard(**LEASE)
    worker = yard.worker()
    key, plain = yard.send("marks_again", "gate", exclusive_key="k"), yard.send("gated", "plain")
    first = yard.until_started(key)
    yard.until_started(plain)

    with outage(cluster, yard):
        yard.until(lambda: not is_alive(first.pid), "the exclusive task is stopped")
        yard.open("plain")
        yard.until(lambda: yard.ends(plain), "the other one ends")
    yard.open("gate")
    yard.until_ended([key, plain])

    yard.audit([plain])
    assert [len(yard.starts(one)) for one in (key, plain)] == [2, 1]
    assert [yard.status(one) for one in (key, plain)] == ["COMPLETED", "COMPLETED"]
    assert [attempt.error_code for attempt in yard.full(key).attempts] == ["LEASE_LOST"]
    assert not overlaps(line for line in yard.ledger() if line.task_id == key)
    assert not yard.events("worker.dead")
    assert worker.stop() == 0
