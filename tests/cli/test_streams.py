"""Whatever became of stdin, stdout and stderr, a command ends with its exit code and without a traceback."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, send

from everbeat.model.state import TaskStatus
from everbeat.store.interface import Store

Redirected = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def redirected() -> Redirected:
    """The command, with streams as a shell is told to make them."""

    def run(how: str, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {how}', "sh", sys.executable, "-P", "-m", "everbeat", *words],
            capture_output=True, text=True, timeout=60, env=os.environ | environment, check=False,
        )  # fmt: skip

    return run


def test_a_closed_stdout_is_no_error(redirected: Redirected, store: Store, url: str) -> None:
    send(store, id="a")

    for words in (["task", "list"], ["task", "show", "a", "--json"], ["queue", "status"]):
        ended = redirected(">&-", *words, "--db", url)

        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_worker_without_streams_runs_tasks_that_print(redirected: Redirected, everbeat: Command, shop: Path) -> None:
    task = everbeat("task", "enqueue", "shop.add", "--args", "[1]", "--app", "shop:app", "--json").json["id"]

    ended = redirected("<&- >&- 2>&-", "worker", "start", "shop:app", "--burst", "--processes", "1")

    assert ended.returncode == 0
    shown = everbeat("task", "show", task, "--app", "shop:app", "--json").json
    assert shown["status"] == TaskStatus.COMPLETED
    assert everbeat("db", "check", "--app", "shop:app").code == 0


def test_a_full_disk_under_stdout_is_told_in_one_line(redirected: Redirected, store: Store, url: str) -> None:
    ended = redirected(">/dev/full", "queue", "status", "--db", url)

    assert ended.returncode == 1
    assert ended.stderr == "everbeat: can not print on stdout: No space left on device\n"


def test_what_can_not_be_told_leaves_the_exit_code(redirected: Redirected, store: Store, url: str) -> None:
    assert redirected("2>/dev/full", "task", "show", "nobody", "--db", url).returncode == 1
    assert redirected("2>&-", "task", "list", "--db", "sqlite:///typo.db").returncode == 3


def test_a_character_that_stdout_does_not_have_is_shown_by_its_number(
    redirected: Redirected, store: Store, url: str
) -> None:
    send(store, id="a")
    store.cancel("a", actor="cli/Jürgen")

    ended = redirected("", "task", "history", "a", "--db", url, PYTHONIOENCODING="ascii")

    assert ended.returncode == 0
    assert "cli/J\\xfcrgen" in ended.stdout
