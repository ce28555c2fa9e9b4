"""The runbook is true: every command on docs/operations.md is run as it stands there, one after the other."""

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, HandWorker, failed_task, send

from everbeat.store.interface import Store

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
COMMANDS = re.findall(r"^\$ everbeat (.*)$", PAGE.read_text(), re.M)


def tasks_of_the_page(store: Store) -> None:
    """The tasks it names, in the states it tells of."""
    hand = HandWorker(store, name="other")
    send(store, id="payment-1")
    hand.fail(hand.claim(), code="WORKER_CRASHED")
    for task_id in ("video-3", "video-4"):
        send(store, id=task_id)
        hand.quarantine(hand.claim())
    failed_task(store, hand, id="invoice-9")
    store.retire(hand.id)
    send(store, id="report-7")
    HandWorker(store, name="alive").claim()
    send(store, id="report-8")


def test_every_command_of_the_runbook_works(
    everbeat: Command, store: Store, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERBEAT_DATABASE_URL", url)
    (tmp_path / "backup").mkdir()
    tasks_of_the_page(store)

    for command in COMMANDS:
        if command.startswith("db restore"):
            store.retire("alive")
        ended = everbeat(*shlex.split(command.replace("/backup/", f"{tmp_path}/backup/")))
        assert ended.code == 0, f"everbeat {command}\n{ended.out}{ended.err}"

    assert len(COMMANDS) > 30


def test_the_runbook_tells_of_every_group_of_commands() -> None:
    page = PAGE.read_text()

    for group in ("queue", "worker", "task", "quarantine", "events", "db"):
        assert f"everbeat {group}" in page
