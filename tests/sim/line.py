"""The way of one worker to its store. Faults strike here, between the transactions of the real store.

* before        nothing was done, and the caller is told so
* after         it was done, and the caller is told that nobody knows
* crash         the worker dies before the transaction; crash_after: once it is committed
* stall         this one call takes long, everybody else goes on; stall_after: its answer does
* stop          the whole worker stands still, its processes go on; stop_after: with the answer on its way

A workflow that somebody has locked is a fault for everybody who changes it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from everbeat.errors import StoreUnavailable
from everbeat.store.transaction import Database, Locked, Transaction


class Killed(BaseException):
    """A simulated process ends here. Not an Exception: no code under test may go on after it."""


@dataclass(slots=True)
class Fault:
    where: str
    """A loop, or a verb of the store; "" is any."""
    kind: str
    seconds: float
    passes: int = 0
    """So many calls that it fits are spared."""
    reads: bool = False
    """It also fits calls that write nothing."""
    then: "Fault | None" = None
    """What follows it, in the next call that it fits."""

    def fits(self, loop: str, verb: str, *, is_after: bool, writes: bool) -> bool:
        if self.kind.endswith("after") != is_after or self.where not in ("", loop, verb):
            return False
        if not (writes or self.reads):
            return False
        self.passes -= 1
        return self.passes < 0


class Line:
    commits = 0
    """That were brought through."""

    def __init__(
        self, database: Database, *, loop: Callable[[], str], is_down: Callable[[bool], bool],
        strike: Callable[[Fault], None], commit: Callable[[], None], meets_lock: Callable[[Transaction], bool],
    ) -> None:  # fmt: skip
        self.faults: list[Fault] = []
        self._commit = commit
        self._loop = loop
        self._is_down = is_down
        self._strike = strike
        self._meets_lock = meets_lock
        self._depth = 0
        """In how many of its own transactions it is: none is interrupted by what others do."""
        self._write, self._read = database.write, database.read
        database.write = self.write  # type: ignore[method-assign]
        database.read = self.read  # type: ignore[method-assign]

    @contextmanager
    def write(self, point: str | None = None, *, wipe: bool = False, hurries: bool = False) -> Iterator[Any]:
        self._meet(is_after=False, writes=True)
        with self._inside(), self._write(point, wipe=wipe, hurries=hurries) as tx:
            yield tx
            if self._meets_lock(tx):
                raise Locked("somebody has locked it")
        self.commits += 1
        self._commit()
        self._meet(is_after=True, writes=True)

    @contextmanager
    def read(self, *, steady: bool = False) -> Iterator[Any]:
        self._meet(is_after=False, writes=False)
        with self._inside(), self._read(steady=steady) as tx:
            yield tx

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _meet(self, *, is_after: bool, writes: bool) -> None:
        if self._depth:
            return
        if not is_after and self._is_down(writes):
            raise StoreUnavailable("the store is away")
        if not self.faults:
            return
        loop, verb = self._loop(), sys._getframe(3).f_code.co_name  # above us: write or read, and its `with`
        fault = next((one for one in self.faults if one.fits(loop, verb, is_after=is_after, writes=writes)), None)
        if fault is not None:
            self.faults.remove(fault)
            self._strike(fault)
