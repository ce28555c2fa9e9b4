"""`app.on` with real workers: who is told, in which process, and that a bad subscriber harms nobody."""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cli.by_hand import Command, until

Start = Callable[..., "subprocess.Popen[str]"]

APP = """
import json, os, signal, sys
from everbeat import Everbeat

app = Everbeat("sqlite:///told.db")

@app.task(name="fails")
def fails() -> None:
    raise ValueError("on purpose")

@app.task(name="works")
def works() -> int:
    return os.getpid()

@app.task(name="waits")
async def waits() -> None:
    return None

def write(who, event):
    said = {"who": who, "name": event.name, "at": event.at.isoformat(), "task": event.task_id,
            "worker": event.worker_id, "facts": event.facts, "pid": os.getpid(), "parent": os.getppid()}
    with open("told.jsonl", "a") as file:
        file.write(json.dumps(said) + "\\n")
"""


@pytest.fixture
def told(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    path = tmp_path / "told.jsonl"
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_app(directory: Path, more: str) -> None:
    (directory / "teller.py").write_text(APP + more)


def ready(worker: "subprocess.Popen[str]") -> None:
    assert worker.stdout is not None
    assert any(line == "ready\n" for line in worker.stdout)


def test_subscribers_are_told_in_a_process_of_their_own_sync_and_async(
    process: Command, everbeat: Command, tmp_path: Path, told: Callable[[], list[dict[str, Any]]]
) -> None:
    write_app(
        tmp_path,
        """
@app.on("task.failed")
def failed(event): write("sync", event)

@app.on("worker.started")
async def started(event): write("async", event)
""",
    )
    task = everbeat("task", "enqueue", "fails", "--app", "teller:app", "--json").json["id"]

    ended = process("worker", "start", "teller:app", "--burst", "--processes", "1", "--name", "w")

    assert ended.code == 0, ended.err
    started, failed = sorted(told(), key=lambda one: str(one["who"]))
    assert (started["who"], started["name"]) == ("async", "worker.started")
    assert started["worker"].startswith("w-")
    assert (failed["who"], failed["name"], failed["task"]) == ("sync", "task.failed", task)
    assert failed["facts"]["code"] == "UNHANDLED_EXCEPTION"
    assert started["pid"] == failed["pid"] != started["facts"]["pid"]


def test_an_application_without_subscribers_has_no_such_process_and_nothing_waits(
    process: Command, everbeat: Command, shop: Path
) -> None:
    process("worker", "start", "shop:app", "--burst", "--processes", "1")

    with closing(sqlite3.connect(shop)) as connection:
        assert connection.execute("SELECT count(*) FROM everbeat_events WHERE wanted = 1").fetchone() == (0,)


def test_a_subscriber_that_raises_or_dies_harms_no_task_and_is_tried_again(
    started: Start, everbeat: Command, tmp_path: Path, told: Callable[[], list[dict[str, Any]]]
) -> None:
    write_app(
        tmp_path,
        """
@app.on("worker.started")
def good(event): write("good", event)

@app.on("worker.started")
def bad(event):
    tries = len([line for line in open("told.jsonl") if '"bad"' in line])
    write("bad", event)
    if tries == 0:
        raise ValueError("not yet")
    if tries == 1:
        os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    worker = started("worker", "start", "teller:app", "--processes", "1")
    ready(worker)
    until(lambda: [one["who"] for one in told()].count("bad") == 3)

    everbeat("task", "enqueue", "works", "--app", "teller:app")
    until(
        lambda: (
            [task["status"] for task in everbeat("task", "list", "--json", "--app", "teller:app").json] == ["COMPLETED"]
        )
    )

    who = [one["who"] for one in told()]
    assert who.count("good") == 2  # not again after the first failure; nobody knows after the death
    worker.send_signal(signal.SIGTERM)
    said, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert "ValueError: not yet" in said
    assert said.count("subscriber.failed event=worker.started") == 2


def test_what_a_killed_worker_did_not_tell_is_told_by_the_next(
    started: Start, process: Command, tmp_path: Path, told: Callable[[], list[dict[str, Any]]]
) -> None:
    write_app(
        tmp_path,
        """
@app.on("worker.started")
def slow(event):
    write("slow", event)
    if not os.path.exists("go"):
        signal.pause()
""",
    )
    first = started("worker", "start", "teller:app", "--processes", "1", "--name", "first")
    ready(first)
    until(told)
    first.kill()
    first.wait()
    subscriber = told()[0]["pid"]
    until(lambda: not Path(f"/proc/{subscriber}").exists())
    (tmp_path / "go").touch()
    process("worker", "start", "teller:app", "--burst", "--processes", "1", "--name", "second")

    names = [str(one["worker"]).split("-")[0] for one in told()]
    assert names == ["first", "first", "second"]


def test_each_application_on_a_store_is_told(
    started: Start, everbeat: Command, tmp_path: Path, told: Callable[[], list[dict[str, Any]]]
) -> None:
    write_app(tmp_path, 'app.on("task.failed", lambda event: write("teller", event))')
    (tmp_path / "audit.py").write_text(APP + 'app.on("*", lambda event: write("audit", event))')
    for target in ("teller:app", "audit:app"):
        ready(started("worker", "start", target, "--processes", "1", "--queues", target.partition(":")[0]))

    everbeat("task", "enqueue", "fails", "--app", "teller:app", "--queue", "teller")

    until(lambda: {one["who"] for one in told() if one["name"] == "task.failed"} == {"teller", "audit"})


def test_the_subscribers_process_ends_with_its_supervisor(
    started: Start, tmp_path: Path, told: Callable[[], list[dict[str, Any]]]
) -> None:
    write_app(
        tmp_path,
        """
@app.on("worker.started")
def tell(event): write("it", event)
""",
    )
    worker = started("worker", "start", "teller:app", "--processes", "1")
    ready(worker)
    until(told)
    subscriber = told()[0]["pid"]
    assert os.path.exists(f"/proc/{subscriber}")

    worker.kill()
    worker.wait()

    until(lambda: not os.path.exists(f"/proc/{subscriber}"))


def test_the_story_of_a_killed_worker_is_told_in_its_order(
    started: Start, everbeat: Command, tmp_path: Path, told: Callable[[], list[dict[str, Any]]]
) -> None:
    write_app(
        tmp_path,
        """
@app.task(name="long")
def long() -> None:
    signal.pause()

app.on("*", lambda event: write("it", event))
""",
    )
    first = started("worker", "start", "teller:app", "--processes", "1", "--name", "first")
    ready(first)
    everbeat("task", "enqueue", "long", "--app", "teller:app")
    until(lambda: everbeat("task", "list", "--status", "RUNNING", "--json", "--app", "teller:app").json)
    second = started("worker", "start", "teller:app", "--processes", "1", "--name", "second")
    ready(second)
    first.kill()
    first.wait()

    until(lambda: "recovery.completed" in [one["name"] for one in told() if "reaper" in one["facts"].get("actor", "")])

    names = [one["name"] for one in told()]
    assert names[0] == "recovery.started"
    assert names.index("worker.dead") < names.index("task.recovered")
    dead = next(one for one in told() if one["name"] == "worker.dead")
    assert dead["facts"]["cause"] == "proof"
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
