"""docs/cli.md is made from the commands, and current."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.by_hand import Command

ROOT = Path(__file__).parents[2]


def test_the_page_of_commands_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/cli_docs.py", "--check"], check=False)

    assert done.returncode == 0, "docs/cli.md is not current: run python tools/cli_docs.py"


@pytest.mark.parametrize("group", [(), ("worker",), ("queue",), ("task",), ("quarantine",), ("db",), ("workflow",)])
def test_what_a_command_does_fits_in_its_line(
    everbeat: Command, monkeypatch: pytest.MonkeyPatch, group: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    helped = everbeat(*group, "--help")

    assert helped.code == 0
    assert [line for line in helped.out.splitlines() if line.endswith("...") and "Usage" not in line] == []


def test_every_command_of_the_readme_exists() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    commands = [line.removeprefix("## everbeat ") for line in page.splitlines() if line.startswith("## ")]

    assert commands == [
        "bench", "check MODULE:APP", "db backup PATH", "db check", "db checkpoint", "db migrate", "db restore PATH",
        "demo", "drill", "events", "metrics",
        "quarantine discard [ID]...", "quarantine list", "quarantine release [ID]...", "queue pause QUEUE",
        "queue recover", "queue recovery-report", "queue recovery-status", "queue resume QUEUE", "queue status",
        "task accept ID", "task cancel [ID]...", "task enqueue NAME", "task erase [ID]...", "task fail [ID]...",
        "task history ID", "task list", "task purge [ID]...", "task requeue [ID]...", "task retry [ID]...",
        "task show ID", "worker health [NAME]", "worker list", "worker start MODULE:APP",
        "workflow cancel ID...", "workflow list", "workflow pause ID...", "workflow resume ID...",
        "workflow retry ID...", "workflow show ID",
    ]  # fmt: skip
