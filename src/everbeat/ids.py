"""Identities: ids of tasks, and the rules for names.

Ids are UUIDs of version 7: they sort by time, so the newest rows stand together in every index. From one `Ids` they
only grow, also when the clock steps back. They are made by the sender, so an enqueue without an answer can be repeated.
"""

import os
import re
import secrets
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

LONGEST_KEY = 512
NAME_PATTERN = re.compile(r"[A-Za-z0-9_.:@/-]{1,128}")
_RANDOM_BITS = 74
_LOW_BITS = 62
_LOW = (1 << _LOW_BITS) - 1
_STEP_BITS = 32


class Ids:
    """A source of ids. Safe to use from several threads; time and randomness can be given."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._now_ms = now_ms
        self._random_bits = random_bits
        self.start_afresh()

    def start_afresh(self) -> None:
        """Forget what was made before. For the child of a fork: it inherits a lock that nobody may ever release."""
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        return self.many(1)[0]

    def many(self, count: int) -> list[str]:
        """That many ids, in order."""
        # 48 bits of time above 74 random bits are one number, which must be a random step above the last one.
        least = self._now_ms() << _RANDOM_BITS | self._random_bits(_RANDOM_BITS)
        steps = array("I", self._random_bits(count * _STEP_BITS).to_bytes(count * _STEP_BITS // 8))
        with self._lock:
            numbers = list(accumulate(steps[1:], _step, initial=max(least, self._last + 1 + steps[0]))) if count else []
            self._last = max(numbers, default=self._last)
        return list(_uuids7(numbers))


def _step(number: int, step: int) -> int:
    return number + 1 + step


def _uuids7(numbers: Iterable[int]) -> Iterator[str]:
    """Each 122 bits, with version and variant in their places, as text. The upper half is the same for most."""
    upper, start = -1, ""
    for number in numbers:
        if number >> _LOW_BITS != upper:
            upper = number >> _LOW_BITS
            moment, middle = f"{upper >> 12:012x}", f"7{upper & 0xFFF:03x}"
            start = f"{moment[:8]}-{moment[8:]}-{middle}-"
        text = f"{number & _LOW | 2 << _LOW_BITS:016x}"
        yield f"{start}{text[:4]}-{text[4:]}"


new_id = Ids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=new_id.start_afresh)


def name_problem(value: object, what: str) -> str | None:
    """What is wrong with a name of a queue, task, worker or with an id; None if nothing is."""
    if isinstance(value, str) and NAME_PATTERN.fullmatch(value):
        return None
    return f"{what} {value!r} is not valid: 1 to 128 letters, digits or any of _ . : @ / - are allowed"


def key_problem(value: object, what: str) -> str | None:
    """What is wrong with a key that users make of their own facts ("invoice 17 of Müller"); None if nothing is."""
    if isinstance(value, str) and 1 <= len(value) <= LONGEST_KEY and value.isprintable():
        return None
    return f"{what} {value!r} is not valid: a text of 1 to {LONGEST_KEY} printable characters is needed"


def module_name(name: str) -> str:
    """The name under which other processes import this module: a script is `__main__` only to itself."""
    if name not in ("__main__", "__mp_main__"):
        return name
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:  # python -m package.module
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return name if file is None or file.startswith("<") else Path(file).stem  # "<stdin>" is no file


def full_name(thing: Any) -> str:
    """`module.qualname` of a class or function, the same in the script that sends and the worker that imports it."""
    return f"{module_name(thing.__module__)}.{thing.__qualname__}"
