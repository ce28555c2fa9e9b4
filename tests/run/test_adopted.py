"""Of the processes that come to process 1, those that have ended are asked for their status, and no others."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable

from everbeat.run.adopted import adopts, reap

PR_SET_CHILD_SUBREAPER = 36


def test_orphans_are_reaped_and_those_that_somebody_waits_for_are_not() -> None:
    def be_process_1() -> None:
        assert not adopts()
        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        assert adopts()
        server = subprocess.Popen(["sh", "-c", "sleep 0 & exec true"], start_new_session=True)
        probe = subprocess.Popen(["true"])
        until(lambda: len(zombies()) == 3)

        reap([server.pid])
        assert {server.pid, probe.pid} <= set(zombies())
        assert (probe.wait(), server.wait()) == (0, 0)
        reap([])

        assert zombies() == []
        reap([])

    assert in_another_process(be_process_1) == 0


def zombies() -> list[int]:
    """Children of this process that have ended."""
    found = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if (state, int(parent)) == ("Z", os.getpid()):
            found.append(pid)
    return found


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < give_up


def in_another_process(deed: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            deed()
        except BaseException:  # noqa: BLE001 - a failure, whatever it is
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
