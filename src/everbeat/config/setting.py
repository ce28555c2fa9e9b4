"""Fields that the code may leave out.

A class of settings declares a field as `setting(default, rule)`. A field that the code does not give holds a `LeftOut`
until the object is complete, so "given in code" is known exactly and for each field, also where the given value equals
the default. `complete.py` fills such a field from the surroundings, and remembers where every value came from.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar, cast

from everbeat.config.rules import Nested, Rule

T = TypeVar("T")
S = TypeVar("S", bound="Settings")

CODE, DEFAULT = "code", "default"


@dataclass(frozen=True, slots=True, repr=False)
class LeftOut:
    """Stands in a field until the surroundings were asked."""

    default: Any
    rule: Rule

    def __repr__(self) -> str:
        return repr(self.default)


def setting(default: T, rule: Rule) -> T:
    return cast(T, LeftOut(default, rule))


def nested(make: Callable[[], T], *kinds: type) -> T:
    """A configuration object inside another one."""
    return cast(T, LeftOut(None, Nested(kinds=kinds, make=make)))


class Settings:
    """The base of configuration classes. Where values came from takes no part in comparing or printing them."""

    __slots__ = ("_origins",)

    @property
    def origins(self) -> Mapping[str, str]:
        """For each field: "code", "default", or what named it: a variable, a line of a file, a flag."""
        return MappingProxyType(getattr(self, "_origins", {}))

    def origin(self, field: str) -> str:
        """Where the value of this field came from, as in `origins`."""
        return self.origins.get(field, CODE)

    def with_origins(self: S, origins: Mapping[str, str]) -> S:
        """The same object, which remembers that these fields came from there."""
        object.__setattr__(self, "_origins", {**self.origins, **origins})
        return self

    def changed(self: S, origin: str, **values: Any) -> S:
        """A copy with other values, which come from there; the rest keeps its origin."""
        changed: S = replace(self, **values)  # type: ignore[type-var]
        return changed.with_origins({**self.origins, **dict.fromkeys(values, origin)})


SECTIONS: dict[str, list[type[Settings]]] = {}
"""Every class of settings by its section of a file; "" is the top."""


def section(name: str) -> Callable[[type[S]], type[S]]:
    def add(cls: type[S]) -> type[S]:
        SECTIONS.setdefault(name, []).append(cls)
        return cls

    return add


def section_of(cls: type[Settings]) -> str:
    return next(name for name, classes in SECTIONS.items() if cls in classes)


def settings_of(cls: type[Settings]) -> Iterator[tuple[Field[Any], LeftOut]]:
    for field in fields(cast(Any, cls)):
        if isinstance(field.default, LeftOut):
            yield field, field.default
