"""What of the ready tasks was looked at before, and need not be walked through again (PROTOCOL 27).

A task that is claimed leaves a dead entry at the head of the index of ready tasks. The server removes those in passing,
but for those that somebody may still see: a dump, a forgotten transaction, a standby that gives feedback. While there
is one, each look for tasks walks past all that were claimed since, and asks the table about each: 5 ms more for every
30,000 tasks, without end. After some hundred thousand tasks an idle worker took 30 ms to find one.

So when looks have walked for long to the first task that they found, the following ones are short:

* what was stored since a while before the last look is found by its number, in the primary key;
* of the kinds of which the last look has found some, others are looked for from the first of these on.

A short look misses what has become ready before those places: a retry, a recovered task, a commit that came late. Where
such is known of (`forget`), the next look is a whole one; and whoever takes a short look is to come again when the next
whole one is due, which is within a second. So this decides how long a look takes, and for a second what it finds: never
what is found in the end. Two that look at the same time in one process share it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

SLOW_US, SLOW_LOOKS = 2_000, 2
"""Who walks for longer to the first ready task, so often in a row, walks past what is dead. Once, and the machine was
busy."""
WHOLE_SECONDS = 1.0
"""So often a whole look is taken, at least."""
BEFORE_SECONDS = 0.1
"""Between a task's number and its commit, for nearly all that are sent one by one."""
MOST_KINDS = 64

TaskKind = tuple[str, str]
Place = tuple[int, int]
"""Priority and seq: the order of claims."""


class Look(NamedTuple):
    since: int | None
    """Of what is not among `left`, only what has this seq or a later one. None: a whole look."""
    left: Mapping[TaskKind, Place]
    """Where the others begin, of these kinds."""
    epoch: int

    @property
    def is_whole(self) -> bool:
        return self.since is None


class Seen(NamedTuple):
    """What a look has come to."""

    newest: int
    """The last seq before it."""
    left: Mapping[TaskKind, Place]
    """The first task that it found of each kind: who knows whether all from there on were taken."""


class Past:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._slow = 0
        """How many whole looks in a row were slow."""
        self._epoch = 0
        self._whole_at: float | None = None
        """When the last whole look began. None: the next is one."""
        self._was_short = False
        """And there was no whole look since."""
        self._seen: deque[tuple[float, int]] = deque()
        """When looks began, and what was the newest then: the last that is old enough, and those after it."""
        self._left: Mapping[TaskKind, Place] = {}

    def look(self, *, whole: bool = False) -> Look:
        """How the next one is to be taken. What is new comes first: a whole look that is due may wait for that."""
        with self._lock:
            now = self._clock()
            since = self._since(now)
            if whole or self._slow < SLOW_LOOKS or self._whole_at is None or since is None:
                return Look(None, {}, self._epoch)
            if self._was_short and now >= self._whole_at + WHOLE_SECONDS:
                return Look(None, {}, self._epoch)
            self._was_short = True  # also if nobody says what has become of it
            return Look(since, self._left, self._epoch)

    def took(self, look: Look, walked_us: int) -> None:
        """So long until the first task was found, or none."""
        if look.is_whole:
            self._slow = self._slow + 1 if walked_us >= SLOW_US else 0

    def saw(self, look: Look, seen: Seen | None) -> None:
        """None: it did not look for everything that may be wanted another time."""
        with self._lock:
            if look.epoch != self._epoch:
                return
            now = self._clock()
            if look.is_whole:
                self._whole_at, self._was_short = now, False
            if seen is None or len(seen.left) > MOST_KINDS:
                return
            self._left = seen.left
            self._seen.append((now, seen.newest))
            while len(self._seen) > 1 and self._seen[1][0] <= now - BEFORE_SECONDS:
                self._seen.popleft()

    def forget(self) -> None:
        """Something that was looked at before may be ready again."""
        with self._lock:
            self._epoch += 1
            self._whole_at = None
            self._seen.clear()
            self._left = {}

    def whole_in_us(self) -> int | None:
        """When whoever has looked is to come again. None: its look was a whole one."""
        with self._lock:
            if not self._was_short or self._whole_at is None:
                return None
            return max(0, round((self._whole_at + WHOLE_SECONDS - self._clock()) * 1_000_000))

    def _since(self, now: float) -> int | None:
        old = [newest for at, newest in self._seen if at <= now - BEFORE_SECONDS]
        return old[-1] + 1 if old else None
