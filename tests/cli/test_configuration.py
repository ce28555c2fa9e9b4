"""Configuration and the real command: bad ones end with 2 and no traceback, good ones reach the worker."""

import json
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, HandWorker, send

from everbeat.model.state import TaskStatus
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter

BARE = """
from everbeat import Everbeat

app = Everbeat()

@app.task(name="bare.add")
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def bare(tmp_path: Path) -> None:
    """An application that leaves everything to its surroundings: bare:app."""
    (tmp_path / "bare.py").write_text(BARE)


COMMANDS = [
    ("worker", "start", "bare:app", "--burst"),
    ("queue", "status"),
    ("queue", "status", "--app", "bare:app"),
    ("task", "list", "--db", "sqlite:///other.db"),
]


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_wrong_file_ends_every_command_with_all_its_problems(
    words: tuple[str, ...], tmp_path: Path, process: Command
) -> None:
    (tmp_path / "everbeat.toml").write_text("[recovery]\nactoin = 'fail'\ncheck_interval_ms = 5\n")

    ended = process(*words)

    assert ended.code == 2
    assert f"{tmp_path}/everbeat.toml, line 2: recovery.actoin is no setting; did you mean action?" in ended.err
    assert f"{tmp_path}/everbeat.toml, line 3: recovery.check_interval_ms must be a whole number" in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_a_wrong_value_in_the_code_is_named_with_its_line(tmp_path: Path, process: Command) -> None:
    (tmp_path / "wrong.py").write_text(
        "from everbeat import *\n\napp = Everbeat(AppConfig(recovery=RecoveryConfig(action='explode')))\n"
    )

    ended = process("worker", "start", "wrong:app", "--burst")

    assert ended.code == 2
    assert f"{tmp_path}/wrong.py:3: RecoveryConfig: action must be one of" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.usefixtures("bare")
def test_commands_and_workers_find_the_store_of_the_file(tmp_path: Path, process: Command) -> None:
    (tmp_path / "everbeat.toml").write_text("database_url = 'sqlite:///here.db'\n")

    started = process("worker", "start", "bare:app", "--burst")
    status = process("queue", "status", "--json")

    assert started.code == 0, started.err
    assert f"sqlite:///{tmp_path}/here.db" in started.out
    assert f'by="database_url in {tmp_path}/everbeat.toml, line 1"' in started.err
    assert json.loads(status.out)["store"] == f"sqlite:///{tmp_path}/here.db"


@pytest.mark.usefixtures("shop")
def test_recovery_switched_off_by_its_variable_leaves_what_a_dead_worker_held(
    store: Store, hand: HandWorker, url: str, process: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = send(store)
    hand.claim()
    store.retire(hand.id)

    monkeypatch.setenv("EVERBEAT_RECOVERY_ENABLED", "0")
    off = process("worker", "start", "shop:app", "--burst", "--db", url)
    left = status(store, task_id)
    monkeypatch.delenv("EVERBEAT_RECOVERY_ENABLED")
    on = process("worker", "start", "shop:app", "--burst", "--db", url)

    assert (off.code, on.code) == (0, 0), off.err + on.err
    assert (left, status(store, task_id)) == (TaskStatus.RUNNING, TaskStatus.FAILED)
    told = "setting.given name=recovery.auto_fail_stale_running value=false by=EVERBEAT_RECOVERY_ENABLED"
    assert f"WARNING {told}" in off.err
    assert "RECOVERY_ENABLED" not in on.err


def status(store: Store, task_id: str) -> TaskStatus:
    task = store.get(task_id, full=False)
    assert task is not None
    return task.status


CHAIN = """
from everbeat import Everbeat
{thread}
app = Everbeat("sqlite:///own.db")

@app.task(name="chain.last")
def last() -> None: ...

@app.task(name="chain.first")
def first() -> None:
    last.enqueue()
"""
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.mark.parametrize("thread", ["", THREAD], ids=["forked", "spawned"])
def test_what_tasks_send_goes_to_the_store_of_the_flag_too(
    thread: str, tmp_path: Path, store: Store, url: str, process: Command
) -> None:
    (tmp_path / "chain.py").write_text(CHAIN.format(thread=thread))
    send(store, "chain.first")

    ended = process("worker", "start", "chain:app", "--burst", "--db", url)

    assert ended.code == 0, ended.err
    assert {task.name: task.status for task in store.tasks(TaskFilter())} == {
        "chain.first": TaskStatus.COMPLETED,
        "chain.last": TaskStatus.COMPLETED,
    }
    assert not (tmp_path / "own.db").exists()
