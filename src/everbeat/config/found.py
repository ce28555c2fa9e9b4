"""What one source says: values with the place where each stands, and everything that is wrong with it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from everbeat.secrecy import masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    key: str
    """The setting, under its one name."""
    value: Any
    name: str
    """As it is spelled there."""
    where: str = ""
    """The file and the line; nothing for a variable, whose name is its place."""

    @property
    def origin(self) -> str:
        return f"{self.name} in {self.where}" if self.where else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    found: Mapping[str, Found]
    problems: tuple[str, ...] = ()


def gather(found: Iterable[Found], problems: Iterable[str]) -> Source:
    """One value for each setting; a setting that is spelled twice is a problem, whatever the values. No problem shows a
    password, also one that stands in the wrong place."""
    chosen: dict[str, Found] = {}
    listed = list(problems)
    for one in found:
        other = chosen.setdefault(one.key, one)
        if other is not one:
            listed.append(f"{other.origin} and {one.origin} are two spellings of one setting; keep one of them")
    return Source(found=chosen, problems=tuple(dict.fromkeys(map(masked, listed))))
