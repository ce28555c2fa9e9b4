"""Identities: ids of tasks, and the rules for names.

Ids are UUIDs of version 7: they sort by time, so the newest rows stand together in every index. From one `Ids` they
only grow, also when the clock steps back. They are made by the sender, so an enqueue without an answer can be repeated.
"""

import inspect
import os
import re
import sys
import threading
import time
from array import array
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any

LONGEST_KEY = 512
LONGEST_SHOWN = 200
"""Of a value that is no name: who sent a page by mistake does not want to read it in the log."""
NAME_PATTERN = re.compile(r"[A-Za-z0-9_.:@/-]{1,128}")
_RANDOM_BITS = 74
_FRACTION = (1 << _RANDOM_BITS) - 1
_LOW_BITS = 62
_LOW = (1 << _LOW_BITS) - 1
_STEP_BYTES = 4
_FRACTION_BYTES = (_RANDOM_BITS + 7) // 8
_POOL_BYTES = 4096
_PLACES = (*range(19, 23), *range(24, 36))
"""Of the digits of the lower half, in the text."""
_ONE_MORE = (1).__add__


class Ids:
    """A source of ids. Safe to use from several threads; time and randomness can be given.

    Randomness is fetched for many ids at once: asking the system lets another thread have the interpreter, and of
    sixteen that send each would wait for its turn twice.
    """

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self.start_afresh()

    def start_afresh(self) -> None:
        """Forget what was made before. For the child of a fork: it inherits a lock that nobody may ever release, and
        what the parent's next ids will be made of."""
        self._lock = threading.Lock()
        self._last = 0
        self._pool, self._used = b"", 0

    def __call__(self) -> str:
        with self._lock:
            drawn = int.from_bytes(self._draw(_STEP_BYTES + _FRACTION_BYTES))
            soonest = self._last + 1 + (drawn >> 8 * _FRACTION_BYTES)
            self._last = number = max(self._now_ms() << _RANDOM_BITS | drawn & _FRACTION, soonest)
        text = f"{number >> _LOW_BITS:015x}{number & _LOW | 2 << _LOW_BITS:016x}"
        return f"{text[:8]}-{text[8:12]}-7{text[12:15]}-{text[15:19]}-{text[19:]}"

    def many(self, count: int) -> list[str]:
        """That many ids, in order."""
        if count < 2:
            return [self()] if count else []
        with self._lock:
            # 48 bits of time above 74 random bits are one number, which must be a random step above the last one.
            fraction = int.from_bytes(self._draw(_FRACTION_BYTES)) & _FRACTION
            steps = array("I", self._draw(count * _STEP_BYTES))
            first = max(self._now_ms() << _RANDOM_BITS | fraction, self._last + 1 + steps[0])
            if (first & _LOW) + (count << 8 * _STEP_BYTES) > _LOW:  # the last of them might not fit below this half
                first = (first >> _LOW_BITS) + 1 << _LOW_BITS
            lower = array("Q", accumulate(map(_ONE_MORE, steps[1:]), initial=first & _LOW | 2 << _LOW_BITS))
            self._last = first - lower[0] + lower[-1]
        return _uuids7(first >> _LOW_BITS, lower)

    def _draw(self, size: int) -> bytes:
        """Each random byte once."""
        if self._used + size > len(self._pool):
            self._pool, self._used = self._random_bytes(max(size, _POOL_BYTES)), 0
        self._used += size
        return self._pool[self._used - size : self._used]


def _uuids7(upper: int, lower: "array[int]") -> list[str]:
    """As text, with the version in its place, and the variant, which the lower halves have already. All have one upper
    half; what differs is put into their lines digit by digit, for all lines at once."""
    moment, middle = f"{upper >> 12:012x}", f"7{upper & 0xFFF:03x}"
    line = f"{moment[:8]}-{moment[8:]}-{middle}-8000-000000000000\n".encode()
    text = bytearray(line * len(lower))
    if sys.byteorder == "little":
        lower.byteswap()
    shown = lower.tobytes().hex().encode()
    for digit, place in enumerate(_PLACES):
        text[place :: len(line)] = shown[digit::16]
    return text.decode().splitlines()


new_id = Ids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=new_id.start_afresh)


def name_problem(value: object, what: str) -> str | None:
    """What is wrong with a name of a queue, task, worker or with an id; None if nothing is."""
    if isinstance(value, str) and NAME_PATTERN.fullmatch(value):
        return None
    return f"{what} {_shown(value)} is not valid: a text of 1 to 128 letters, digits or any of _ . : @ / - is needed"


def key_problem(value: object, what: str) -> str | None:
    """What is wrong with a key that users make of their own facts ("invoice 17 of Müller"); None if nothing is."""
    if isinstance(value, str) and 1 <= len(value) <= LONGEST_KEY and value.isprintable():
        return None
    return f"{what} {_shown(value)} is not valid: a text of 1 to {LONGEST_KEY} printable characters is needed"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text)} characters)"


def module_name(name: str) -> str:
    """The name under which other processes import this module: a script is `__main__` only to itself."""
    if name not in ("__main__", "__mp_main__"):
        return name
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:  # python -m package.module
        return str(spec.name)
    file = _file_of(main)
    return name if file is None else Path(file).stem


def is_typed_in(function: Callable[..., Any]) -> bool:
    """In a notebook or at the prompt, where somebody may say the same again, and better."""
    return function.__module__ == "__main__" and _file_of(sys.modules["__main__"]) is None


def _file_of(module: object) -> str | None:
    file: str | None = getattr(module, "__file__", None)
    return None if file is None or file.startswith("<") else file  # "<stdin>" is no file


def full_name(thing: Any) -> str:
    """`module.qualname` of a class or function, the same in the script that sends and the worker that imports it."""
    return f"{module_name(thing.__module__)}.{thing.__qualname__}"


def code_of(function: Callable[..., Any]) -> CodeType:
    """Of the function as it was written, whatever decorators have wrapped around it."""
    code: CodeType = getattr(inspect.unwrap(function), "__code__", function.__code__)
    return code
