"""Until when tasks with an exclusive key may run, in memory that supervisor and fork server share (PROTOCOL 24).

The supervisor moves it on with every beat that was answered; the fork server reads it and ends the children that run
such tasks when it is over. Nothing has to be sent for that, so it works while the supervisor is stopped, and no queue
can be full. CLOCK_BOOTTIME goes on while the machine sleeps: whoever wakes up late stops.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable

from everbeat.decide.lease import Lease

_BYTES = 8


def boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Deadline:
    """One whole number, written and read at once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _BYTES)
        self._cell = memoryview(self._memory).cast("q")
        self._writing = threading.Lock()

    @classmethod
    def create(cls) -> "Deadline":
        fd = os.memfd_create("everbeat-deadline", os.MFD_CLOEXEC)
        os.ftruncate(fd, _BYTES)
        return cls(fd)

    @property
    def at_us(self) -> int:
        return self._cell[0]

    def move_to(self, at_us: int) -> None:
        """Never back."""
        with self._writing:
            self._cell[0] = max(self._cell[0], at_us)

    def close(self) -> None:
        self._cell.release()
        self._memory.close()
        os.close(self.fd)


class HeldLease:
    """The supervisor's side. Beats are answered in two threads: a flush that takes a task with a key is one, too."""

    def __init__(self, lease: Lease, deadline: Deadline, *, now_us: Callable[[], int] = boot_us) -> None:
        self.lease = lease
        self._deadline = deadline
        self.now_us = now_us
        """The moment to be told of when what is sent now has been answered."""

    def answered(self, sent_at_us: int) -> None:
        self._deadline.move_to(sent_at_us + self.lease.stop_us)

    def left_us(self) -> int:
        """Until tasks with a key have to stop; negative when it is over."""
        return self._deadline.at_us - self.now_us()
