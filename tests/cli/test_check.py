"""`everbeat check`: the rules in effect, and what can not work."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.by_hand import Command

GOOD = """
from everbeat import AppConfig, Everbeat, QueueConfig, RecoveryConfig, RetryPolicy, SQLiteConfig

app = Everbeat(AppConfig(broker=SQLiteConfig("jobs.db"), recovery=RecoveryConfig(max_recovery_attempts=5)))

@app.task
def add(a: int, b: int = 2) -> int: ...

@app.task(name="mail.send", queue="mail", priority=10, timeout=30, isolated=True, sensitive=True,
          max_recovery_attempts=2,
          retry=RetryPolicy(max_attempts=5, base_seconds=3, retry_on=[TimeoutError, "WORKER_CRASHED"]))
async def send_mail(to: str) -> None: ...

@app.task(on_crash="pending")
def again() -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    def write(code: str, name: str = "shop.py") -> None:
        (tmp_path / name).write_text(code)

    return write


def test_each_task_is_shown_with_the_rules_that_are_in_effect(everbeat: Command, shop: Any, tmp_path: Path) -> None:
    shop(GOOD)

    ended = everbeat("check", "shop:app")

    lines = [" ".join(line.split()) for line in ended.out.splitlines()]
    assert (ended.code, ended.err) == (0, "")
    assert lines[0] == f"shop:app: 3 tasks, store sqlite:///{tmp_path}/jobs.db"
    assert (
        "mail.send async mail 10 5 runs again; quarantine at 2 30s isolated, sensitive, exponential backoff from 3s, "
        "only on TimeoutError, WORKER_CRASHED"
    ) in lines
    assert "shop.add sync default 100 1 FAILED - -" in lines
    assert "shop.again sync default 100 1 runs again, uses no attempt; quarantine at 5 - -" in lines
    assert "setting recovery.max_recovery_attempts = 5 from code" in lines
    assert "processes: forked from one that has imported the application" in lines
    assert lines[-1] == "nothing to complain about"
    assert not (tmp_path / "jobs.db").exists()


def test_the_application_may_be_named_by_the_environment(
    everbeat: Command, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop(GOOD)
    monkeypatch.setenv("EVERBEAT_APP", "shop:app")

    assert everbeat("check", "--json").json["app"] == "shop:app"


def test_the_same_as_json(everbeat: Command, shop: Any) -> None:
    shop(GOOD)

    said = json.loads(everbeat("check", "shop:app", "--json").out)

    assert (said["ok"], said["problems"], said["fork_server"]) == (True, [], {"usable": True, "why_not": None})
    mail = next(task for task in said["tasks"] if task["name"] == "mail.send")
    assert mail["signature"] == "send_mail(to: str) -> None"
    assert (mail["max_attempts"], mail["timeout"], mail["max_recovery_attempts"]) == (5, 30.0, 2)
    assert mail["retry_on"] == ["builtins.TimeoutError", "WORKER_CRASHED"]
    assert {"key": "recovery.max_recovery_attempts", "value": "5", "origin": "code"} in said["configuration"]


BAD = """
import datetime
from everbeat import AppConfig, Everbeat, RetryPolicy

app = Everbeat("sqlite:///jobs.db")

class Custom: ...

@app.task(name="odd")
def odd(a: Custom, b: "datetime.date | str") -> None: ...

@app.task(name="lost")
def lost(a: "NotThere") -> None: ...

@app.task(name="back")
def back() -> Custom: ...

@app.task(name="typo", retry=RetryPolicy(retry_on=["WORKER_CRASH", "shop.Custom", "no.such.Error", "shop.Fine"]))
def typo() -> None: ...

class Fine(Exception): ...

@app.task(name="pointless", on_crash="retry", retry=RetryPolicy(max_attempts=1))
def pointless() -> None: ...
"""


def test_what_can_not_work_is_named_and_the_command_fails(everbeat: Command, shop: Any) -> None:
    shop(BAD)

    ended = everbeat("check", "shop:app")

    assert ended.code == 1
    assert (
        "PROBLEM  task odd: parameter 'a' of odd() has a type that can not be read from JSON: shop.Custom" in ended.out
    )
    assert "PROBLEM  task lost: the annotations of lost() can not be resolved: name 'NotThere'" in ended.out
    assert "PROBLEM  task back: the return annotation of back()" in ended.out
    assert "'WORKER_CRASH', which is no error code; did you mean 'WORKER_CRASHED'?" in ended.out
    assert "'shop.Custom', which is no exception class" in ended.out
    assert "'no.such.Error', which is no exception class" in ended.out
    assert "shop.Fine', which" not in ended.out
    assert "PROBLEM  task pointless: on_crash='retry' has no effect" in ended.out
    assert ended.out.splitlines()[-1] == "7 problems, 1 warning"
    assert json.loads(everbeat("check", "shop:app", "--json").out)["ok"] is False


def test_names_that_clash_are_a_problem(everbeat: Command, shop: Any) -> None:
    shop(
        "from everbeat import Everbeat\napp = Everbeat('sqlite:///jobs.db')\n"
        "@app.task(name='add')\ndef one() -> None: ...\n@app.task(name='add')\ndef two() -> None: ...\n"
    )

    ended = everbeat("check", "shop:app")

    assert ended.code == 1
    assert "the name is taken by the function at" in ended.out


def test_an_application_that_fails_to_import_is_a_problem_and_one_that_is_not_there_a_mistake(
    everbeat: Command, shop: Any
) -> None:
    shop("raise RuntimeError('not today')")

    failed, missing = everbeat("check", "shop:app"), everbeat("check", "nowhere:app")

    assert (failed.code, missing.code) == (1, 2)
    assert "RuntimeError: not today" in failed.out
    assert "there is no module nowhere" in missing.err


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, name='poller', daemon=True).start()",
            "poller",
        ),
        ("import socket\nkept = socket.socketpair()", "left 2 connections open"),
    ],
)
def test_why_processes_can_not_be_forked_is_said(everbeat: Command, shop: Any, code: str, why: str) -> None:
    shop(f"from everbeat import Everbeat\n{code}\napp = Everbeat('sqlite:///jobs.db')\n")

    ended = everbeat("check", "shop:app")

    assert ended.code == 0
    assert "processes: a new interpreter for each: importing the application left" in ended.out
    assert why in ended.out


def test_what_works_and_may_not_be_meant_is_a_warning(everbeat: Command, shop: Any) -> None:
    Path("shop").mkdir()
    shop(
        "from everbeat import Everbeat\napp = Everbeat('sqlite:///jobs.db', imports=['shop.tasks'])\n",
        "shop/__init__.py",
    )
    shop("from shop import app\n@app.task\ndef add() -> None: ...\n", "shop/tasks.py")
    shop(
        "import sys\nsys.path.insert(0, 'shop')\nfrom shop import app\nimport tasks\n"
        "@app.around_task\nasync def around(task):\n    yield\n",
        "start.py",
    )

    ended = everbeat("check", "start:app")

    assert ended.code == 0
    assert "was imported as shop.tasks and tasks: the tasks shop.tasks.add, tasks.add are one function" in ended.out
    assert "around_task start.around is asynchronous" in ended.out


QUIETLY = """
from functools import wraps
def quietly(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
"""


def test_tasks_below_one_decorator_are_still_several_functions(everbeat: Command, shop: Any, tmp_path: Path) -> None:
    shop(QUIETLY, "tools.py")
    shop("from everbeat import Everbeat\napp = Everbeat('sqlite:///jobs.db', imports=['mails', 'bills'])\n")
    for name in ("mails", "bills"):
        shop(
            "from shop import app\nfrom tools import quietly\n@app.task\n@quietly\ndef send() -> None: ...\n",
            f"{name}.py",
        )

    ended = everbeat("check", "shop:app", "--json")

    found = json.loads(ended.out)
    assert found["warnings"] == []
    assert [task["defined_at"] for task in found["tasks"]] == [f"{tmp_path}/bills.py:3", f"{tmp_path}/mails.py:3"]


def test_a_plain_function_around_an_async_one_is_a_warning(everbeat: Command, shop: Any) -> None:
    shop(QUIETLY, "tools.py")
    shop(
        "from everbeat import Everbeat\nfrom tools import quietly\napp = Everbeat('sqlite:///jobs.db')\n"
        "@app.task\n@quietly\nasync def send() -> None: ...\n"
    )

    ended = everbeat("check", "shop:app", "--json")

    assert ended.code == 0
    (warning,) = json.loads(ended.out)["warnings"]
    assert warning["task"] == "shop.send"
    assert "it is a plain function around an async one: RESULT_INVALID, unless" in warning["problem"]


def test_an_application_without_tasks_is_told_where_they_may_be(everbeat: Command, shop: Any) -> None:
    shop("from everbeat import Everbeat\napp = Everbeat('sqlite:///jobs.db')\n")

    assert (
        "it has no tasks; if they are in other modules, name these with imports=[...]"
        in everbeat("check", "shop:app").out
    )


def test_a_password_is_not_shown(everbeat: Command, shop: Any) -> None:
    shop("from everbeat import Everbeat\napp = Everbeat('postgresql://me:secret@db/jobs')\n")

    for words in ((), ("--json",)):
        ended = everbeat("check", "shop:app", *words)
        assert "secret" not in ended.out + ended.err
