"""Ages that people and monitoring read and write are counted by the clock of the store, not by that of who looks."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from select import select

import pytest
from tests.cli.by_hand import Command, HandWorker, failed_task, send, until
from tests.cli.test_metrics import samples
from tests.cli.test_operating import a_report, save_old_report
from tests.flow_words import begin, graph

from everbeat.model.event import Event
from everbeat.store.interface import Store
from everbeat.testing import shift_clock

HOUR = 3600
AN_HOUR_OFF = "60m"


@pytest.fixture(params=[-HOUR, HOUR], ids=["behind", "ahead"], autouse=True)
def off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many seconds the wall clock that stores of this process are given is off that of whoever looks."""
    right, seconds = time.time_ns, int(request.param)
    monkeypatch.setattr(time, "time_ns", lambda: right() + seconds * 1_000_000_000)
    return seconds


def test_the_oldest_task_of_a_queue_has_waited_since_it_was_sent(everbeat: Command, store: Store, url: str) -> None:
    send(store)

    found = samples(everbeat("metrics", "--db", url).out)

    assert 0 < found["everbeat_queue_oldest_runnable_seconds", "queue=default"] < 60


@pytest.mark.parametrize(
    "look", ["task list", "queue status", "quarantine list", "workflow list", "worker list --show-heartbeat"]
)
def test_whatever_is_shown_was_a_moment_ago(
    everbeat: Command, store: Store, hand: HandWorker, url: str, look: str
) -> None:
    send(store, name="shop.segfault")
    hand.quarantine(hand.claim("shop.segfault"))
    send(store)
    begin(store, graph(a=""))

    shown = everbeat(*look.split(), "--db", url)

    assert (shown.code, "s ago" in shown.out, AN_HOUR_OFF in shown.out) == (0, True, False)


def test_a_queue_that_can_run_says_since_when_its_oldest_task_waits(everbeat: Command, store: Store, url: str) -> None:
    task = store.get(send(store))

    (queue,) = everbeat("queue", "status", "--json", "--db", url).json["queues"]

    assert task is not None
    assert queue["oldest_runnable_at"] == task.run_at.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("boot", ["this", "another"])
def test_a_worker_has_been_silent_since_its_last_beat(
    everbeat: Command, store: Store, hand: HandWorker, url: str, tmp_path: Path, boot: str
) -> None:
    if boot == "another":
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
            connection.execute("UPDATE everbeat_workers SET clock_id = 'another'")

    (worker,) = everbeat("worker", "list", "--json", "--db", url).json

    assert 0 <= worker["heartbeat_age"] < 60


def test_what_is_listed_by_its_age_is_what_the_store_calls_so_old(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    failed_task(store, hand)

    def counted(*words: str) -> int:
        return len(everbeat(*words, "--json", "--db", url).json)

    assert (counted("task", "list", "--since", "10m"), counted("task", "list", "--since", "0m")) == (1, 0)
    assert (counted("events", "--since", "10m"), counted("events", "--since", "0m")) == (2, 0)


def test_what_is_removed_by_its_age_is_what_the_store_calls_so_old(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = failed_task(store, hand)

    kept = everbeat("task", "purge", "--older-than", "10m", "--yes", "--json", "--db", url)
    gone = everbeat("task", "purge", "--older-than", "0m", "--yes", "--json", "--db", url)

    assert (kept.json["purged"], gone.json["purged"]) == ([], [task_id])


def test_reports_of_the_last_minutes_are_those_of_the_minutes_of_the_store(
    everbeat: Command, store: Store, url: str
) -> None:
    save_old_report(store, 50, "old")
    store.save_report(a_report(store.now(), "new"), actor="test")

    recent = everbeat("queue", "recovery-report", "--since", "10m", "--json", "--db", url).json

    assert [task["task_id"] for task in recent["recovered_tasks"]] == ["new"]
    assert recent["earlier"] == []


def test_who_follows_events_is_told_of_those_from_now_on_only(store: Store, url: str, tmp_path: Path, off: int) -> None:
    shift_clock(tmp_path / "clock", off)
    store.announce([Event(name="test.before")])
    words = ["--clock-file", str(tmp_path / "clock"), "--", "events", "--follow", "--db", url]

    with subprocess.Popen([sys.executable, "-P", "-m", "everbeat.testing", *words], stdout=subprocess.PIPE) as follower:
        try:
            assert follower.stdout is not None
            until(lambda: store.announce([Event(name="test.after")]) or select([follower.stdout], [], [], 0)[0])
            line = follower.stdout.readline()
        finally:
            follower.kill()

    assert b"test.after" in line
