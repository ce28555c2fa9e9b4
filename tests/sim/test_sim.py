"""Schedules of faults on workers under virtual time: none may break a promise (tests/sim/model.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EACH = 25
ROOT = Path(__file__).parents[2]


def simulate(*words: str) -> tuple[int, str]:
    """In a process of its own, where sets have an order that is always the same."""
    command = [sys.executable, "-m", "tests.sim", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("first", range(1, 201, EACH))
def test_no_schedule_breaks_a_promise(first: int) -> None:
    status, said = simulate("--n", str(EACH), "--seed", str(first))
    assert status == 0, said
