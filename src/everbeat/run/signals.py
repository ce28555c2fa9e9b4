"""SIGTERM and SIGINT, heard by a loop that polls: a descriptor that becomes readable, and a count."""

import signal
import socket
from types import FrameType
from typing import Any, Self


class Signals:
    """Installed while entered. Only in the main thread of a process."""

    HEARD = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._hear) for number in self.HEARD}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> int:
        """How many signals came since the last call."""
        try:
            self._reader.recv(4096)
        except BlockingIOError:
            pass
        count, self._count = self._count, 0
        return count

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
