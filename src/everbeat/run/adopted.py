"""Processes whose parent has ended and that the kernel has given to us, because we are process 1 of a container.

What a task leaves behind when it ends, or when its group is killed, comes to process 1, and stays a zombie until that
one asks for its status. A container has only so many processes: in the end nothing could be started any more.

Never asked for: the status of a process that we started ourselves. Somebody waits for that.
"""

import ctypes
import os
from collections.abc import Collection
from contextlib import suppress

_PR_GET_CHILD_SUBREAPER = 37
_INIT = 1
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def adopts() -> bool:
    """Whether orphans come to this process: it is the first of its container, or was told to be in its place."""
    told = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(told), 0, 0, 0)
    return os.getpid() == _INIT or told.value != 0


def reap(servers: Collection[int]) -> None:
    """Those that have ended. Ours are in our session, but for the fork servers. One of ours that nobody has waited for
    yet may hide others; they are found the next time."""
    with suppress(ChildProcessError, ProcessLookupError):  # there are none; or somebody was faster
        while (ended := os.waitid(os.P_ALL, 0, _ENDED)) is not None:
            if ended.si_pid in servers or os.getsid(ended.si_pid) == os.getsid(0):
                return
            os.waitpid(ended.si_pid, 0)
