"""A connection that does not wait for an answer without end.

The limits of a session are kept by the server, and keepalives by its kernel: a server whose disk hangs, or that is
frozen, keeps neither, and every connection to it looks well. So the client counts, too. It gives up later than the
server would, and the connection is closed: what was on its way is in doubt (PROTOCOL 7). Where the server is given
more time on purpose, for an upgrade or a check that a person wants all of, so is the answer.
"""

import select
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
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
    used_at = 0.0
    """When it was last given back."""
    _takes_longer = 0.0

    @cached_property
    def poll(self) -> select.poll:
        """Says whether something has come. Made once: that takes as long as to ask."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return poll

    @contextmanager
    def taking(self, seconds: float) -> Iterator[None]:
        """What is asked within may take so much longer than anything else."""
        self._takes_longer = seconds
        try:
            yield
        finally:
            self._takes_longer = 0.0

    @property
    def _patience(self) -> float:
        return ANSWER_SECONDS + self._takes_longer

    def together(self) -> Talk:
        """For statements that are sent at once."""
        return Batch(self, self.prepared)

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        return super().wait(self._for_a_while(gen), *args, **options)

    def hear(self) -> "psycopg.pq.abc.PGresult":
        """The answer to the one statement that was sent. Like `wait`, but without generators, which cost a single
        sender as much as all the rest of its work."""
        pgconn, poll, answer = self.pgconn, self.poll, None
        give_up = time.monotonic() + self._patience
        while True:
            while pgconn.is_busy():
                if not poll.poll(1000 * max(0.0, give_up - time.monotonic())):
                    raise self._given_up()
                pgconn.consume_input()
            said = pgconn.get_result()
            if said is None and answer is not None:
                return answer
            if said is None:
                raise psycopg.OperationalError("the connection was lost")
            answer = said

    def _given_up(self) -> psycopg.OperationalError:
        self.close()
        return psycopg.OperationalError(f"the server has not answered for {self._patience:.0f} s")

    def _for_a_while(self, waiting: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Woken at intervals, with what the socket is ready for; with nothing if it is not."""
        give_up = time.monotonic() + self._patience
        try:
            wanted = next(waiting)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > give_up:
                    raise self._given_up()
                wanted = waiting.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
