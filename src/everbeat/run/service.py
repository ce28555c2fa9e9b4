"""A loop in a thread of its own: `tick()` again and again, until told to stop.

A loop is never switched off by an error: it is reported, and the next tick comes after a pause. That is why the one
broad `except` of this package is here.
"""

import threading
from typing import Protocol

from everbeat.errors import StoreUnavailable
from everbeat.report.log import Reporter

RETRY_SECONDS = 0.25
"""After a store that did not answer: a quarter of the smallest threshold that can be configured (PROTOCOL 18)."""
FAILED_SECONDS = 1.0


class Loop(Protocol):
    name: str

    def tick(self) -> float:
        """Do one turn; the seconds until the next."""


class Service:
    def __init__(self, loop: Loop, reporter: Reporter) -> None:
        self.loop = loop
        self._reporter = reporter
        self._bell = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"everbeat-{loop.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """The next turn is now."""
        self._bell.set()

    def stop(self) -> None:
        """Ask it to end, and wait for the turn it is in."""
        self._is_over = True
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            self._bell.wait(self._turn())
            self._bell.clear()

    def _turn(self) -> float:
        try:
            return self.loop.tick()
        except StoreUnavailable as error:
            self._reporter.store_unavailable(self.loop.name, error)
            return RETRY_SECONDS
        except Exception as error:  # noqa: BLE001 - recovery and heartbeats must outlive a bug in one turn
            self._reporter.loop_failed(self.loop.name, error)
            return FAILED_SECONDS
