"""What the benchmark reads of processes, any of which may end meanwhile."""

import os
import subprocess
import sys

import pytest

from everbeat.bench.machine import cpu_seconds, family


def test_a_family_is_a_process_and_all_below_it() -> None:
    nested = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", nested], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        try:
            assert family(process.pid) == [process.pid, grandchild]
            assert family(os.getpid())[0] == os.getpid()
        finally:
            os.kill(grandchild, 9)


def test_a_process_that_ends_while_it_is_looked_at_has_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", gone)

    assert family(1) == [1]
    assert cpu_seconds(1 << 24) == 0.0
