"""Small questions to single settings. Each answers with a problem in words, or None.

A configuration asks all of them and raises one `ConfigError` with every answer, so that a person repairs a file once.
"""

import math
from collections.abc import Iterable
from datetime import timedelta

from everbeat.errors import ConfigError

Seconds = float | timedelta
"""Wherever seconds are taken, a timedelta is too."""


def raise_for(problems: Iterable[str | None], *, subject: str) -> None:
    found = [problem for problem in problems if problem is not None]
    if found:
        raise ConfigError(found, subject=subject)


def whole(name: str, value: object, low: int, high: int, *, unit: str = "", optional: bool = False) -> str | None:
    """A whole number within bounds, both included."""
    if optional and value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return None
    none = " or None" if optional else ""
    return f"{name} must be a whole number from {low:_} to {high:_}{unit}{none}, not {value!r}"


def number(name: str, value: object, low: float, high: float, *, unit: str = "") -> str | None:
    """A finite number within bounds, both included."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high:
        return None
    return f"{name} must be a number from {low:g} to {high:g}{unit}, not {value!r}"


def flag(name: str, value: object) -> str | None:
    return None if isinstance(value, bool) else f"{name} must be true or false, not {value!r}"


def one_of(name: str, value: object, allowed: Iterable[str]) -> str | None:
    words = tuple(allowed)
    if isinstance(value, str) and value in words:
        return None
    return f"{name} must be one of {', '.join(map(repr, words))}, not {value!r}"


def in_seconds(value: object) -> object:
    """A timedelta as seconds; anything else unchanged, to be judged by `number`."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def to_seconds(value: Seconds) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
