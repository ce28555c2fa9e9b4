"""The log of real workers: one line per event in the words of the table, and which task a record was made in."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.by_hand import Command

from everbeat.report.log import line

APP = """
import asyncio, logging
from everbeat import Everbeat

app = Everbeat("sqlite:///logged.db")
log = logging.getLogger("mine")

@app.task(name="sync.one")
def sync_one(secret: str) -> None:
    log.info("from sync")
    log.info("with extra", extra={"attempt": "my own"})
    raise ValueError("no")

@app.task(name="async.one")
async def async_one(number: int) -> None:
    await asyncio.sleep(0)
    log.info("from async %d", number)
    await asyncio.to_thread(log.info, "from a thread %d", number)

log.info("while importing")
"""

OWN_HANDLER = """
import sys
logging.basicConfig(level="INFO", stream=sys.stderr, format="OWN %(message)s %(task_id)s %(task_name)s %(worker)s",
                    force=True)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "logged.py"
    path.write_text(APP)
    return path


def enqueue(everbeat: Command, name: str, args: str) -> str:
    sent: str = everbeat("task", "enqueue", name, "--args", args, "--app", "logged:app", "--json").json["id"]
    return sent


def test_each_event_is_one_line_with_the_same_facts_as_in_the_table(
    process: Command, everbeat: Command, app: Path
) -> None:
    enqueue(everbeat, "sync.one", '["hunter2"]')

    ended = process("worker", "start", "logged:app", "--burst", "--processes", "1", "--log-format", "json")

    lines = [json.loads(text) for text in ended.err.splitlines()]
    said = [one for one in lines if "event" in one and one["event"] != "task.raised"]
    stored = everbeat("events", "--json", "--app", "logged:app").json
    assert [one["event"] for one in said] == [event["name"] for event in stored]
    for one, event in zip(said, stored, strict=True):
        facts = {"task": event["task_id"], "worker": event["worker_id"], **event["facts"]}
        assert {name: one.get(name) for name in facts} == facts
    assert "hunter2" not in ended.err


def test_in_text_the_words_are_those_of_the_events_command(process: Command, everbeat: Command, app: Path) -> None:
    enqueue(everbeat, "sync.one", '["x"]')

    ended = process("worker", "start", "logged:app", "--burst", "--processes", "1")

    others = (" mine: ", " task.raised ", "  Traceback", "    ", "  ValueError")
    logged = [text.split(" ", 3)[3] for text in ended.err.splitlines() if not any(other in text for other in others)]
    stored = [text.split(" ", 1)[1] for text in everbeat("events", "--app", "logged:app").out.splitlines()]
    assert logged == stored


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_task_that_raises_says_why_with_its_traceback(
    process: Command, everbeat: Command, app: Path, kind: str
) -> None:
    with app.open("a") as file:
        file.write(f'@app.task(name="bad")\n{kind} bad() -> None:\n    raise ValueError("line\\n\\x1b[31mred")\n')
    task = enqueue(everbeat, "bad", "[]")

    ended = process("worker", "start", "logged:app", "--burst", "--processes", "1")
    shown = everbeat("task", "show", task, "--app", "logged:app")
    as_json = everbeat("task", "show", task, "--app", "logged:app", "--json").json

    lines = ended.err.splitlines()
    (said,) = [number for number, text in enumerate(lines) if " WARNING task.raised " in text]
    assert f"task={task} name=bad attempt=1 code=UNHANDLED_EXCEPTION" in lines[said]
    assert lines[said].endswith('error="builtins.ValueError: line ..."')
    assert lines[said + 1] == "  Traceback (most recent call last):"
    assert "  \\x1b[31mred" in lines
    assert "\x1b" not in ended.err + shown.out
    assert "ValueError: line" in shown.out
    assert as_json["exception_type"] == "builtins.ValueError"
    assert as_json["traceback"].startswith("Traceback")


def test_a_sensitive_task_that_raises_says_only_what_kind_of_error_it_was(
    process: Command, everbeat: Command, app: Path
) -> None:
    with app.open("a") as file:
        file.write('@app.task(name="bad", sensitive=True)\ndef bad() -> None:\n    raise ValueError("hunter2")\n')
    task = enqueue(everbeat, "bad", "[]")

    ended = process("worker", "start", "logged:app", "--burst", "--processes", "1")
    shown = everbeat("task", "show", task, "--app", "logged:app")

    assert "task.raised" in ended.err
    assert "error=builtins.ValueError" in ended.err
    assert "hunter2" not in ended.err + shown.out


def test_records_made_inside_a_task_say_in_which_one_sync_and_async(
    process: Command, everbeat: Command, app: Path
) -> None:
    sync = enqueue(everbeat, "sync.one", '["x"]')
    asyncs = {number: enqueue(everbeat, "async.one", f"[{number}]") for number in (1, 2)}

    ended = process(
        "worker", "start", "logged:app", "--burst", "--processes", "1", "--name", "w", "--log-format", "json"
    )

    records: dict[str, dict[str, Any]] = {}
    for record in map(json.loads, ended.err.splitlines()):
        if record["logger"] == "mine":
            records[record["message"]] = record
    assert records["from sync"]["task_id"] == sync
    assert records["from sync"]["task_name"] == "sync.one"
    assert records["from sync"]["attempt"] == 1
    assert records["from sync"]["worker"].startswith("w-")
    assert records["with extra"]["attempt"] == "my own"
    for number, task in asyncs.items():
        assert records[f"from async {number}"]["task_id"] == task
        assert records[f"from a thread {number}"]["task_id"] == task


def test_the_handler_of_an_application_is_left_alone_and_its_records_carry_the_task(
    process: Command, everbeat: Command, app: Path
) -> None:
    app.write_text(APP.replace('log.info("while importing")', "") + OWN_HANDLER)
    task = enqueue(everbeat, "async.one", "[1]")

    ended = process("worker", "start", "logged:app", "--burst", "--processes", "1", "--name", "w")

    own = [text for text in ended.err.splitlines() if "from async" in text]
    assert len(own) == 1
    assert own[0].startswith(f"OWN from async 1 {task} async.one w-")


def test_no_stored_text_can_forge_or_colour_a_line() -> None:
    assert line("task.failed", {"reason": "a\x1b[31m\nb"}) == 'task.failed reason="a\\u001b[31m\\nb"'
