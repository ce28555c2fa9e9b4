"""Workers, queues, quarantine and events, as operators see them."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing

from tests.cli.by_hand import Command, HandWorker, failed_task, send

from everbeat.model.event import Event
from everbeat.store.interface import Store


def test_workers_are_listed_with_their_heartbeat(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    send(store)
    hand.claim()

    (worker,) = everbeat("worker", "list", "--json", "--db", url).json
    table = everbeat("worker", "list", "--show-heartbeat", "--db", url).out

    assert (worker["id"], worker["status"], worker["is_alive"]) == ("hand", "alive", True)
    assert (worker["held_tasks"], worker["heartbeat_interval"], worker["has_session"]) == (1, 30.0, None)
    assert "LAST HEARTBEAT" in table
    assert "LAST HEARTBEAT" not in everbeat("worker", "list", "--db", url).out


def test_a_dead_worker_says_why(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    store.declare_dead("hand", reason="worker hand is gone: its lock is free", cause="proof")

    (worker,) = everbeat("worker", "list", "--json", "--db", url).json

    assert (worker["status"], worker["is_alive"]) == ("dead", False)
    assert "its lock is free" in everbeat("worker", "list", "--db", url).out
    assert everbeat("worker", "list", "--status", "alive", "--json", "--db", url).json == []


def test_queues_are_counted_by_status(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    failed_task(store, hand, queue="mail")
    send(store)
    send(store, delay_us=3_600_000_000)

    said = everbeat("queue", "status", "--json", "--db", url).json

    queues = {queue["queue"]: queue for queue in said["queues"]}
    assert queues["mail"]["counts"]["FAILED"] == 1
    assert queues["default"]["counts"]["PENDING"] == 2
    assert queues["default"]["oldest_runnable_at"] is not None
    assert queues["mail"]["oldest_runnable_at"] is None
    assert (said["workers"]["alive"], said["quarantined"], said["blocked_by"]) == (1, 0, None)


def test_the_status_names_who_keeps_a_transaction_open(process: Command, store: Store, url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")

        said = process("queue", "status", "--db", url).out

    assert f"store blocked by pid {os.getpid()}: nobody can write" in said


def test_the_status_does_not_complain_of_who_is_only_busy(everbeat: Command, store: Store, url: str) -> None:
    busy = threading.Event()
    writing = threading.Thread(target=lambda: [send(store) for _ in iter(busy.is_set, True)])
    writing.start()

    said = everbeat("queue", "status", "--json", "--db", url).json

    busy.set()
    writing.join()
    assert said["blocked_by"] is None


def test_the_status_of_an_empty_store_is_readable(everbeat: Command, store: Store, url: str) -> None:
    assert everbeat("queue", "status", "--db", url).out.startswith(f"No tasks.\n\nstore: {url}\n")


def test_only_tasks_that_kept_crashing_are_in_quarantine(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    failed_task(store, hand)
    poison = send(store, name="shop.segfault")
    hand.quarantine(hand.claim("shop.segfault"))

    listed = everbeat("quarantine", "list", "--json", "--db", url).json

    assert [task["id"] for task in listed] == [poison]
    assert "killed by SIGSEGV" in everbeat("quarantine", "list", "--db", url).out
    assert "1 task" in everbeat("queue", "status", "--db", url).out


def test_an_empty_quarantine_is_an_empty_array(everbeat: Command, store: Store, url: str) -> None:
    assert everbeat("quarantine", "list", "--json", "--db", url).json == []
    assert everbeat("worker", "list", "--json", "--db", url).json == []
    assert everbeat("events", "--json", "--db", url).json == []


def test_events_are_printed_oldest_first_one_per_line(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = failed_task(store, hand)

    lines = everbeat("events", "--db", url).out.splitlines()

    assert [line.split()[1] for line in lines] == ["worker.started", "task.failed"]
    assert f"task={task_id}" in lines[1]
    assert [event["name"] for event in everbeat("events", "--json", "--task", task_id, "--db", url).json] == [
        "task.failed"
    ]
    assert everbeat("events", "--json", "--since", "2999-01-01", "--db", url).json == []


def test_more_events_than_a_page_are_all_printed(everbeat: Command, store: Store, url: str) -> None:
    store.announce(Event(name="test.counted", facts={"number": number}) for number in range(2500))

    assert [event["facts"]["number"] for event in everbeat("events", "--json", "--db", url).json] == list(range(2500))


def test_events_are_followed_until_ctrl_c(
    started: Callable[..., subprocess.Popen[str]], store: Store, url: str
) -> None:
    store.announce([Event(name="test.first")])
    following = started("events", "--follow", "--since", "1h", "--db", url)
    assert following.stdout is not None
    first = following.stdout.readline()

    store.announce([Event(name="test.second")])
    second = following.stdout.readline()
    following.send_signal(signal.SIGINT)

    assert "test.first" in first
    assert "test.second" in second
    assert following.wait(10) == 0
    assert following.stdout.read() == ""


def test_a_status_is_said_in_any_case_and_a_wrong_one_is_told_with_those_there_are(
    everbeat: Command, store: Store, url: str
) -> None:
    send(store)

    assert len(everbeat("task", "list", "--status", "pending", "--json", "--db", url).json) == 1
    wrong = everbeat("task", "list", "--status", "DONE", "--db", url)
    assert wrong.code == 2
    assert "'DONE' is no status; there are PENDING, CLAIMED, RUNNING, COMPLETED" in wrong.err


def test_a_command_loads_nothing_that_only_others_need() -> None:
    heavy = ("everbeat.run.child", "everbeat.run.worker", "everbeat.run.manual", "everbeat.store.sqlite.store",
             "everbeat.drill.drill", "everbeat.cli.benching", "rich", "prometheus_client", "http.server")  # fmt: skip
    code = f"import sys, everbeat.cli.main; print([name for name in {heavy} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
