"""Two hosts and a server; all packets of one host are dropped, and nobody is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts import Hosts
from tests.postgres import Cluster
from tests.system.far import FarHost

from everbeat import TaskStatus
from everbeat.model import event
from everbeat.model.worker import WorkerStatus

RECOVERY = {
    "runner_heartbeat_interval_ms": 1_000,
    "claimer_heartbeat_interval_ms": 1_000,
    "check_interval_ms": 1_000,
    "running_stale_threshold_ms": 25_000,
    "claimed_stale_threshold_ms": 25_000,
    "exclusive_lease_ms": 10_000,
}


@pytest.fixture
def far() -> Iterator[FarHost]:
    with FarHost() as far:
        yield far


@pytest.fixture
def hosts(cluster: Cluster, tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(cluster.new_database(), tmp_path, RECOVERY)
    yield hosts
    hosts.close()


def test_a_host_is_cut_off_and_returns(cluster: Cluster, hosts: Hosts, far: FarHost) -> None:
    cut_off = hosts.worker("cut-off", url=far.let_in(cluster, hosts.url), within=far.within)
    again, once, alone, waiting = hosts.send_to(
        cut_off,
        ("again", {}),
        ("once", {}),
        ("shows", {"exclusive_key": "k"}),
        ("again", {"queue": "far", "gate": "at once"}),
    )
    near = hosts.worker("near", "--queues", "default")
    hosts.until_seen(cut_off, by=near)

    far.cut()

    # Its session is lost, and after the grace what may run again does. Nobody else serves the queue `far`.
    hosts.until_started(again, times=2)
    hosts.until(lambda: hosts.status(waiting) is TaskStatus.PENDING, "the other one waits to be run again")
    assert hosts.task(again).worker_id == near.id
    assert hosts.status(once) is TaskStatus.RUNNING
    assert cut_off.info.status is WorkerStatus.ALIVE

    # Its exclusive task was stopped before another could begin.
    second = hosts.until_started(alone, times=2)
    first = hosts.starts(alone)[0]
    assert all(line.at < second.at for line in hosts.lines(alone, "lives") if line.fence == first.fence)
    assert not [line for line in hosts.lines(alone, "end") if line.fence == first.fence]

    # What it ends meanwhile it can tell nobody. Its task with one attempt is failed by the threshold alone.
    hosts.open("at once")
    hosts.until(lambda: hosts.lines(waiting, "end"), "the far run has ended")
    hosts.until(lambda: hosts.status(once) is TaskStatus.FAILED, "the threshold has told")
    assert hosts.events(event.WORKER_DEAD) == [cut_off.id]
    hosts.open()
    assert hosts.result(again) == hosts.starts(again)[1].fence
    assert hosts.result(alone) == second.fence
    hosts.until(lambda: hosts.lines(once, "end"), "the far run has ended")

    far.mend()

    # What nobody has begun to run again is adopted; the rest is refused, and kept.
    hosts.until(lambda: hosts.status(waiting) is TaskStatus.COMPLETED, "the outcome is adopted")
    assert hosts.result(waiting) == hosts.starts(waiting)[0].fence
    assert len(hosts.starts(waiting)) == 1
    for task_id in (again, once):
        (late,) = hosts.until(lambda: hosts.app.store.late_outcomes(task_id), "the outcome is refused")  # noqa: B023
        assert late.fence == hosts.starts(task_id)[0].fence
    assert hosts.status(once) is TaskStatus.FAILED
    new = hosts.send("once", queue="far")
    assert hosts.result(new) == hosts.starts(new)[0].fence, "it goes on under another id"
