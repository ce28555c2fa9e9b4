"""What a setting may be. One rule per field refuses a wrong value from whatever source, reads a right one from the
text of a variable or from a file, and describes itself for the documentation.

Reading never fails: what can not be read stays as it is, and `problem` says what is wrong with it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everbeat.config import checks, urls

YES, NO = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}
_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_OCTAL = re.compile(r"(0o?)?([0-7]{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Any value."""

    def problem(self, name: str, value: object) -> str | None:
        """What is wrong with the value, in words that begin with the name; None if nothing is."""
        return None

    def problems(self, name: str, value: object) -> list[str]:
        """Every problem, for a value of several parts."""
        found = self.problem(name, value)
        return [] if found is None else [found]

    def from_text(self, text: str) -> object:
        """From an environment variable."""
        return text

    def from_file(self, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @property
    def words(self) -> str:
        """What is allowed, for the documentation."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Rule):
    def problem(self, name: str, value: object) -> str | None:
        return checks.flag(name, value)

    def from_text(self, text: str) -> object:
        word = text.strip().lower()
        return True if word in YES else False if word in NO else text

    @property
    def words(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Rule):
    low: int
    high: int
    unit: str = ""
    optional: bool = False
    """None, written `none`, switches it off."""

    def problem(self, name: str, value: object) -> str | None:
        unit = f" {self.unit}" if self.unit else ""
        return checks.whole(name, value, self.low, self.high, unit=unit, optional=self.optional)

    def from_text(self, text: str) -> object:
        word = text.strip()
        return int(word) if _WHOLE.fullmatch(word) else self.from_file(word)

    def from_file(self, value: object) -> object:
        return None if self.optional and isinstance(value, str) and value.lower() == "none" else value

    @property
    def words(self) -> str:
        none = ", or none" if self.optional else ""
        return f"{self.low:,} to {self.high:,} {self.unit}".rstrip() + none


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Rule):
    low: float
    high: float
    unit: str = ""

    def problem(self, name: str, value: object) -> str | None:
        return checks.number(name, value, self.low, self.high, unit=f" {self.unit}" if self.unit else "")

    @property
    def words(self) -> str:
        return f"{self.low:g} to {self.high:g} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf(Rule):
    choices: tuple[str, ...]

    def problem(self, name: str, value: object) -> str | None:
        return checks.one_of(name, value, self.choices)

    @property
    def words(self) -> str:
        return ", ".join(f"`{choice}`" for choice in self.choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules(Rule):
    def problem(self, name: str, value: object) -> str | None:
        if not isinstance(value, tuple):
            return f"{name} must be a list of module names such as ['shop.tasks'], not {value!r}"
        wrong = ", ".join(repr(module) for module in value if not _is_module(module))
        return f"{name} takes module names such as 'shop.tasks', not {wrong}" if wrong else None

    def from_text(self, text: str) -> object:
        return tuple(part.strip() for part in text.split(","))

    @property
    def words(self) -> str:
        return "module names; in a variable separated by commas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names(Rule):
    """Of arguments, or of fields inside them."""

    def problem(self, name: str, value: object) -> str | None:
        if isinstance(value, tuple) and all(isinstance(one, str) and one.strip() == one != "" for one in value):
            return None
        return f"{name} must be a list of names such as ['password'], not {value!r}"

    def from_text(self, text: str) -> object:
        return tuple(part.strip() for part in text.split(","))

    @property
    def words(self) -> str:
        return "names; in a variable separated by commas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode(Rule):
    """Permission bits, in a variable always octal: 600, 0600 and 0o600 are the same."""

    def problem(self, name: str, value: object) -> str | None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0o777 and value & 0o600 == 0o600:
            return None
        shown = oct(value) if isinstance(value, int) and not isinstance(value, bool) else repr(value)
        return f"{name} must be permission bits that let the owner read and write, such as 0o600 or 0o660, not {shown}"

    def from_text(self, text: str) -> object:
        octal = _OCTAL.fullmatch(text.strip())
        return int(octal[2], 8) if octal else text

    def from_file(self, value: object) -> object:
        return self.from_text(value) if isinstance(value, str) else value

    @property
    def words(self) -> str:
        return "permission bits with read and write for the owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema(Rule):
    def problem(self, name: str, value: object) -> str | None:
        if isinstance(value, str) and value.startswith("pg_"):
            return f"{name} must not begin with pg_, which PostgreSQL keeps for schemas of its own: {value!r}"
        if value is None or (isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", value)):
            return None
        return f"{name} must be a plain PostgreSQL identifier of at most 63 characters, not {value!r}"

    @property
    def words(self) -> str:
        return "a PostgreSQL identifier of at most 63 characters, not `pg_...`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Url(Rule):
    """A store by its URL, which may hold a password: never shown unmasked."""

    def problem(self, name: str, value: object) -> str | None:
        if not isinstance(value, str):
            return f"{name} must be a URL such as sqlite:///jobs.db, not {type(value).__name__}"
        problem = urls.problem(value)
        return None if problem is None else f"{name}: {problem}"

    @property
    def words(self) -> str:
        return "`sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://...`"


@dataclass(frozen=True, slots=True, kw_only=True)
class File(Rule):
    """A store by the path of its SQLite file."""

    def problem(self, name: str, value: object) -> str | None:
        problem = urls.path_problem(value)
        return None if problem is None else f"{name}: {problem}"

    def from_text(self, text: str) -> object:
        return self.from_file(text)

    def from_file(self, value: object) -> object:
        return Path(value) if isinstance(value, str) and urls.path_problem(value) is None else value

    @property
    def words(self) -> str:
        return "the path of a file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested(Rule):
    """A configuration object of its own, made from the surroundings when it is left out."""

    kinds: tuple[type, ...]
    make: Callable[[], Any]

    def problem(self, name: str, value: object) -> str | None:
        if isinstance(value, self.kinds):
            return None
        return f"{name} must be a {' or '.join(kind.__name__ for kind in self.kinds)}, not {type(value).__name__}"


def _is_module(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
