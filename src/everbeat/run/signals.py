"""SIGTERM, SIGINT and SIGHUP, heard by a loop that polls: a descriptor that becomes readable, and a count.

Counted is what the kernel delivered: Python calls a handler once for signals that come while it can not, but writes a
byte to the wake-up descriptor for each. (Two that come while the process is stopped are one for the kernel already.)
"""

import select
import signal
import socket
from types import FrameType
from typing import Self


class Signals:
    """Installed while entered. Only in the main thread of a process, which is expected to end afterwards: from then on
    they are ignored, because what they ask for is being done. SIGHUP is the end of the terminal, or of the connection
    to it, and means nothing to a process that was started with `nohup`."""

    def __init__(self) -> None:
        hung_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
        self.heard = (signal.SIGTERM, signal.SIGINT, *hung_up)
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self.heard:
            signal.signal(number, _hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self.heard:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def are_silent_for(self, seconds: float) -> bool:
        """Wait; False as soon as there is one to take."""
        return not select.select([self], [], [], seconds)[0]

    def take(self) -> int:
        """How many signals came since the last call."""
        try:
            return sum(number in self.heard for number in self._reader.recv(4096))
        except BlockingIOError:
            return 0


def _hear(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has it."""
