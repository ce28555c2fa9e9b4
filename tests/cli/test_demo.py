"""The demo: its story is true, and nothing of it is left."""

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from everbeat.cli.demo_stage import is_running


def test_the_demo_shows_a_recovery_and_leaves_nothing(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    said, _ = (demo := started("demo", TMPDIR=str(tmp_path))).communicate(timeout=60)

    assert demo.returncode == 0, said
    killed = int(re.search(r"^kill -9 (\d+): ", said, re.M)[1])  # type: ignore[index]
    assert f"pid {killed}" in said.partition("kill -9 ")[0].partition("\n\n")[2]
    assert f"pid {killed} died of SIGKILL" in said
    assert re.search(r"^ +\d+ ms  worker\.dead  worker \S+ is gone: its lock is free$", said, re.M)
    assert re.search(r"^ +\d+ ms  task\.recovered  video-\d: retry$", said, re.M)
    assert re.search(r"^ +\d+ ms  FAILED with WORKER_CRASHED  payment-\d \(charge_card, attempt 1/1\)$", said, re.M)
    assert re.search(r"^ +\d+ ms  RUNNING again  video-\d \(render_video, attempt 2/3\) on \S+$", said, re.M)
    assert "=== Queue Recovery Report ===" in said
    enqueued, ends = re.search(r"every task accounted for: (\d+) enqueued = (.*)$", said, re.M).groups()  # type: ignore[union-attr]
    assert int(enqueued) == sum(map(int, re.findall(r"\d+", ends)))
    assert not any(map(is_running, _pids(said)))
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_the_workers_and_removes_the_directory(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    demo = started("demo", TMPDIR=str(tmp_path))
    assert demo.stdout is not None
    said = ""
    for line in demo.stdout:
        said += line
        if "RUNNING" in line:
            break

    demo.send_signal(signal.SIGINT)

    assert demo.wait(30) in (1, 128 + signal.SIGINT)
    assert len(_pids(said)) == 2
    assert not any(map(is_running, _pids(said)))
    assert list(tmp_path.iterdir()) == []


def _pids(said: str) -> set[int]:
    return {int(pid) for pid in re.findall(r"pid (\d+)", said)}
