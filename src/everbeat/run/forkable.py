"""Whether a process can be forked after it has imported an application (PROTOCOL 22)."""

import os
import threading
from contextlib import suppress


def open_sockets() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own fd
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {name for name in found if name.startswith("socket:")}


def why_not_fork(sockets_before: set[str]) -> str | None:
    """What the import left that does not survive a fork; None if nothing."""
    threads = len(os.listdir("/proc/self/task")) - 1  # also those that Python does not know of
    if threads:
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        return f"importing the application left {threads} threads running ({names or 'of a C library'})"
    sockets = open_sockets() - sockets_before
    if sockets:
        return f"importing the application left {len(sockets)} connections open"
    return None
