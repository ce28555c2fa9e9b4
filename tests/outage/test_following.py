"""Commands that a person leaves running, while the server is away."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.crash.yard import Yard
from tests.postgres import Cluster

from everbeat import Workflow
from everbeat.model.event import Event


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", "everbeat", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_events_are_followed_through_an_outage(
    started: Callable[..., subprocess.Popen[str]], yard: Yard, cluster: Cluster, store_url: str
) -> None:
    yard.store.announce([Event(name="test.before")])
    following = started("events", "--follow", "--since", "1h", "--db", store_url)
    assert following.stdout is not None
    before = following.stdout.readline()

    cluster.stop()
    told = following.stdout.readline()
    cluster.start()
    yard.store.announce([Event(name="test.after")])
    after = following.stdout.readline()
    following.send_signal(signal.SIGINT)

    assert "test.before" in before
    assert "Waiting for it" in told
    assert "test.after" in after
    assert following.wait(10) == 0


def test_a_workflow_is_watched_through_an_outage(
    started: Callable[..., subprocess.Popen[str]], yard: Yard, cluster: Cluster, store_url: str
) -> None:
    flow = Workflow("flow")
    flow.add(yard.app.tasks["quick"])
    run = flow.start(yard.app)
    watching = started("workflow", "show", run.id, "--watch", "--json", "--db", store_url)
    assert watching.stdout is not None
    before = watching.stdout.readline()

    cluster.stop()
    told = watching.stdout.readline()
    cluster.start()
    run.cancel()
    after = watching.stdout.readline()

    assert '"RUNNING"' in before
    assert "Waiting for it" in told
    assert '"CANCELLED"' in after
    assert watching.wait(10) == 0
