"""What a person sees on a terminal: questions, bars that move, and nothing of either on stdout."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.by_hand import Ended, HandWorker, send

from everbeat.store.interface import Store

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
Watched = Callable[..., Ended]


@pytest.fixture
def watched() -> Watched:
    """The command with a terminal for questions and complaints, and a pipe for data."""

    def run(*words: str, types: str = "") -> Ended:
        screen, terminal = pty.openpty()
        command = subprocess.Popen(
            [sys.executable, "-P", "-m", "everbeat", *words],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(terminal)
        os.write(screen, types.encode())
        shown = "".join(_read(screen))
        said, _ = command.communicate(timeout=60)
        os.close(screen)
        return Ended(code=command.returncode, out=said, err=shown)

    return run


def _read(screen: int) -> Iterator[str]:
    """Until the last process that has the terminal is gone."""
    while True:
        try:
            yield os.read(screen, 65_536).decode(errors="replace")
        except OSError:  # EIO
            return


def _bars(shown: str) -> list[str]:
    """What was painted, one line for each time, without colours."""
    return [line.strip() for line in re.split(r"[\r\n]+", ESCAPES.sub("", shown)) if line.strip()]


def test_a_recovery_shows_how_far_it_is_and_prints_only_its_report(
    watched: Watched, store: Store, hand: HandWorker, url: str
) -> None:
    send(store)
    hand.claim()
    store.declare_dead(hand.id, reason="gone", cause="manual")

    ended = watched("queue", "recover", "--json", "--db", url)

    assert ended.code == 0
    assert json.loads(ended.out)["orphaned_tasks_found"] == 1
    assert any(re.match(r"[a-z]+ ━+ \d+/", line) for line in _bars(ended.err))


def test_an_order_about_many_asks_and_counts_while_it_works(
    watched: Watched, store: Store, hand: HandWorker, url: str
) -> None:
    for _ in range(3):
        send(store)
        hand.complete(hand.claim())

    refused = watched("task", "purge", "--status", "COMPLETED", "--db", url, types="n\n")
    done = watched("task", "purge", "--status", "COMPLETED", "--db", url, types="y\n")

    assert (refused.code, done.code) == (1, 0)
    assert "Remove 3 tasks and their records for good? [y/N]" in refused.err
    assert "nothing was changed" in refused.err
    assert any("purge 3 tasks" in line and "3/3" in line for line in _bars(done.err))
    assert done.out == "3 tasks removed\n"


def test_a_copy_shows_its_progress(watched: Watched, store: Store, tmp_path: Path, url: str) -> None:
    send(store)

    ended = watched("db", "backup", str(tmp_path / "copy.db"), "--db", url)

    assert ended.code == 0
    assert any(line.startswith("copying") for line in _bars(ended.err))
    assert "integrity ok" in ended.out


def test_a_worker_s_bar_is_gone_before_its_banner(watched: Watched, shop: Path) -> None:
    ended = watched("worker", "start", "shop:app", "--burst", "--processes", "1", "--log-level", "error")

    assert ended.code == 0, ended.err
    assert any(re.match(r"[a-z]+ ━+ \d+/", line) for line in _bars(ended.err))
    assert "everbeat:" in ended.out
    assert "\x1b" not in ended.out
