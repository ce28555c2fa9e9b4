"""Stop signals, sent to a real process."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import everbeat

PATIENCE = 20.0
SOURCES = Path(everbeat.__file__).parent.parent

BUSY = """
import ctypes, os, signal
from everbeat.run.signals import Signals

with Signals() as signals:
    signal.siginterrupt(signal.SIGTERM, False)
    os.write(1, b"in a C call\\n")
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)  # no handler can run before it returns
    os.write(1, f"{signals.take()}\\n".encode())
os.write(1, b"leaving\\n")
ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
"""


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONPATH": str(SOURCES)}
    ) as started:
        yield started
        started.kill()


def test_two_quick_signals_are_two_and_one_that_comes_while_leaving_is_no_death(
    process: "subprocess.Popen[bytes]",
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"in a C call\n"

    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        until_delivered(process.pid)
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.stdout.readline() == b"2\n"
    assert process.stdout.readline() == b"leaving\n"
    process.send_signal(signal.SIGTERM)
    process.stdin.close()

    assert process.wait(PATIENCE) == 0


def until_delivered(pid: int) -> None:
    """Until no signal waits for this process."""
    give_up = time.monotonic() + PATIENCE
    while True:
        lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if int(lines["SigPnd"], 16) == int(lines["ShdPnd"], 16) == 0:
            return
        assert time.monotonic() < give_up, "the signal was not delivered"
