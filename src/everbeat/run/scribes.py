"""Write flushes for the dispatcher, in threads of their own: it goes on hearing its processes meanwhile.

So nothing that a store does, or does not do, keeps an outcome from being heard (P8, PROTOCOL 30), and while the store
is busy with one flush the next is made. What a flush means for the worker is decided where it was sent, once its answer
is taken up there; nothing here touches anything of the worker's.

An error that is not an answer ends the thread, and the dispatcher is told that there will be none.
"""

import os
import threading
from queue import Empty, SimpleQueue
from typing import Protocol

from everbeat.errors import StoreUnavailable
from everbeat.store.interface import Store
from everbeat.store.messages import Flush, Flushed
from everbeat.store.transaction import RowRefused

Answer = Flushed | StoreUnavailable | RowRefused
LAST_SECONDS = 1.0


class Writing(Protocol):
    """What the dispatcher needs of them."""

    @property
    def is_free(self) -> bool:
        """One more can be written."""

    def write(self, number: int, flush: Flush) -> None:
        """Begin. Only if they are free."""

    def answers(self) -> list[tuple[int, Answer]]:
        """To what was written since the last call, by number."""


class Scribes:
    def __init__(self, store: Store, count: int) -> None:
        self._store = store
        self._jobs: SimpleQueue[tuple[int, Flush] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[int, Answer | None]] = SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._busy = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"everbeat-scribe-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def fileno(self) -> int:
        """Readable when there are answers."""
        return self._bell

    @property
    def is_free(self) -> bool:
        return self._busy < len(self._threads)

    def write(self, number: int, flush: Flush) -> None:
        self._busy += 1
        self._jobs.put((number, flush))

    def answers(self) -> list[tuple[int, Answer]]:
        if not self._busy:
            return []
        heard: list[tuple[int, Answer]] = []
        try:
            os.eventfd_read(self._bell)  # before the answers: who rings has put his there
            while True:
                number, answer = self._answers.get_nowait()
                if answer is None:
                    raise RuntimeError("a flush failed in a way that nobody has foreseen; its error was printed")
                self._busy -= 1
                heard.append((number, answer))
        except (Empty, BlockingIOError):
            return heard

    def close(self) -> None:
        """What is still under way ends by itself: nobody waits for long for a store that does not answer."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(LAST_SECONDS)
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self._bell)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            number, flush = job
            answer: Answer | None = None
            try:
                answer = self._store.flush(flush)
            except (StoreUnavailable, RowRefused) as error:
                answer = error
            finally:
                self._answers.put((number, answer))
                os.eventfd_write(self._bell, 1)
