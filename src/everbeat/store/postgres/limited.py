"""A connection that does not wait for an answer without end.

The limits of a session are kept by the server, and keepalives by its kernel: a server whose disk hangs, or that is
frozen, keeps neither, and every connection to it looks well. So the client counts, too. It gives up later than the
server would, and the connection is closed: what was on its way is in doubt (PROTOCOL 7).
"""

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

from everbeat.store.postgres.batch import Batch, Prepared, Talk
from everbeat.store.transaction import Row

T = TypeVar("T")
ANSWER_SECONDS = 40.0


class LimitedConnection(psycopg.Connection[Row]):
    takes_copies = True
    prepared: Prepared | None = None
    """What its session knows by name; None where it may be another session for each transaction."""

    def together(self) -> Talk:
        """For statements that are sent at once."""
        return Batch(self, self.prepared)

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        return super().wait(self._for_a_while(gen), *args, **options)

    def _for_a_while(self, waiting: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Woken at intervals, with what the socket is ready for; with nothing if it is not."""
        limit = ANSWER_SECONDS
        give_up = time.monotonic() + limit
        try:
            wanted = next(waiting)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > give_up:
                    self.close()
                    raise psycopg.OperationalError(f"the server has not answered for {limit:.0f} s")
                wanted = waiting.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
