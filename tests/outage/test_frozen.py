"""A server that takes everything and answers nothing, as if its disk hung: no connection is lost, nothing is refused.

The kernel of its machine still acknowledges every byte, so neither keepalives nor the server's own limits help.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Yard, children_of, is_stopped
from tests.outage.test_server import LONGER_THAN_EVERY_THRESHOLD, assert_that_nobody_noticed, two_at_work
from tests.postgres import Cluster

from everbeat import StoreUnavailable
from everbeat.store.postgres import limited


@contextmanager
def frozen(cluster: Cluster, yard: Yard) -> Iterator[None]:
    os.kill(cluster.pid, signal.SIGSTOP)  # it starts no more backends
    yard.until(lambda: is_stopped(cluster.pid), "the server is stopped")
    pids = [cluster.pid, *children_of(cluster.pid)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_workers_outlive_a_server_that_is_frozen_for_longer_than_every_threshold(
    make_yard: MakeYard, cluster: Cluster
) -> None:
    yard = make_yard(**FAST)
    known, ids = two_at_work(yard)

    with frozen(cluster, yard):
        yard.open("go")
        yard.until(lambda: all(yard.ends(task_id) for task_id in ids), "they have ended")
        ended_at = max(yard.ends(task_id)[0].at_ns for task_id in ids)
        yard.until(lambda: yard.has_passed(ended_at, LONGER_THAN_EVERY_THRESHOLD), "every threshold is over")
    yard.until_ended(ids)

    assert_that_nobody_noticed(yard, ids, known)
    assert not yard.events("task.recovered")


def test_a_sender_does_not_wait_for_a_frozen_server_without_end(
    yard: Yard, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = yard.send("quick")
    monkeypatch.setattr(limited, "ANSWER_SECONDS", 1.0)

    with frozen(cluster, yard), pytest.raises(StoreUnavailable) as caught:
        yard.send("quick")

    doubtful = caught.value.task_id
    assert doubtful is not None
    assert caught.value.maybe_stored
    assert "has not answered for 1 s" in str(caught.value)
    yard.app.tasks["quick"].options(id=doubtful).enqueue()
    assert {task.id for task in yard.tasks()} == {first, doubtful}


def test_a_result_is_waited_for_no_longer_than_was_asked_for(
    yard: Yard, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = yard.send("quick")
    monkeypatch.setattr(limited, "ANSWER_SECONDS", 1.0)

    with frozen(cluster, yard), pytest.raises(TimeoutError):
        yard.app.handle(task_id).result(timeout=2)
