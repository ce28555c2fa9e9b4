"""Words given on the command line, read and checked: moments, names, JSON. Bad ones are usage errors (exit 2)."""

import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from everbeat.cli.grammar import Misused
from everbeat.ids import name_problem
from everbeat.model.state import TaskStatus
from everbeat.store.interface import Store

Moment = datetime | timedelta
"""As it is said: a time, or how long ago."""

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
LONGEST = timedelta(days=365_000)
"""What is longer past is no time: every store can count back so far, and a year has four digits."""
AGE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])")


def moment(text: str) -> Moment:
    """`10m` (ago), or an ISO 8601 time; one without a zone is UTC."""
    age = AGE.fullmatch(text.strip())
    try:
        if age:
            past = timedelta(**{UNITS[age[2]]: float(age[1])})
            if past > LONGEST:
                raise OverflowError
            return past
        said = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise Misused(f"{text!r} is not a time; use 30s, 10m, 2h, 1d or 2024-01-15T10:30:00Z") from error
    return said if said.utcoffset() is not None else said.replace(tzinfo=UTC)


def at(store: Store, said: Moment | None) -> datetime | None:
    """The time that was meant. Ages are counted from the time of the store."""
    return store.now() - said if isinstance(said, timedelta) else said


def status(text: str) -> TaskStatus:
    try:
        return TaskStatus(text.strip().upper())
    except ValueError as error:
        raise Misused(f"{text!r} is no status; there are {', '.join(TaskStatus)}") from error


def names(text: str | None, what: str) -> tuple[str, ...] | None:
    """`a,b` as names."""
    if text is None:
        return None
    return tuple(name(part.strip(), what) for part in text.split(","))


def name(text: str, what: str) -> str:
    problem = name_problem(text, what)
    if problem is not None:
        raise Misused(problem)
    return text


def arguments(text: str) -> list[Any] | dict[str, Any]:
    """A JSON list is positional, an object is by name."""
    try:
        value = json.loads(text, parse_constant=_not_json, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise Misused("--args is nested too deeply") from error
    except ValueError as error:
        raise Misused(f"--args is not JSON: {error}") from error
    if not isinstance(value, list | dict):
        raise Misused(f"--args must be a JSON list or object, not {text}")
    return value


def _not_json(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON value")


def _finite(word: str) -> float:
    """JSON has larger numbers than a float, and no word for what they would be."""
    number = float(word)
    if math.isinf(number):
        raise ValueError(f"{word} is too large a number")
    return number


def address(text: str) -> tuple[str, int]:
    """`127.0.0.1:8080`, `[::1]:8080`; a port alone, or `:8080`, is on this machine only."""
    host, _, port = text.strip().rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (host.startswith("[") is not host.endswith("]")):
        raise Misused(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8080")
    return host.strip("[]") or "127.0.0.1", int(port)
