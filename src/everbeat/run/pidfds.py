"""Processes by the descriptor that stands for each: it becomes readable when they end, and never names another one."""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field


@dataclass(slots=True)
class Watch:
    """One epoll, and what to do about each fd in it."""

    epoll: select.epoll = field(default_factory=select.epoll)
    acts: dict[int, Callable[[], None]] = field(default_factory=dict)

    def add(self, fd: int, act: Callable[[], None]) -> None:
        self.acts[fd] = act
        self.epoll.register(fd, select.EPOLLIN)

    def drop(self, fd: int) -> None:
        if self.acts.pop(fd, None) is not None:
            self.epoll.unregister(fd)


def send_signal(pidfd: int, signum: signal.Signals) -> bool:
    try:
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, signum)
            return True
    except ProcessLookupError:
        pass
    return False


def kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if pid:
            os.killpg(pid, signal.SIGKILL)


def has_exited(pidfd: int) -> bool:
    return wait_for_exit(pidfd, 0.0)


def wait_for_exit(pidfd: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
