"""What `help(...)` and an editor show of the public names."""

import inspect
from collections.abc import Iterator
from enum import Enum
from types import FunctionType
from typing import Any

import pytest

import everbeat

GENERATED = ("Create a collection of name/value pairs", "An enumeration", "str(object='') -> str")
"""What Python says where nobody has said anything; of a dataclass it says its signature."""


def own_words(thing: Any) -> str:
    words = thing.__dict__.get("__doc__") or "" if inspect.isclass(thing) else thing.__doc__ or ""
    is_generated = words.startswith((*GENERATED, f"{getattr(thing, '__name__', '')}("))
    return "" if is_generated else words


def undescribed() -> Iterator[str]:
    for name in everbeat.__all__:
        thing = getattr(everbeat, name)
        if not own_words(thing):
            yield name
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            yield from (f"{name}.{member}" for member in members_without_words(thing))


def members_without_words(kind: type) -> Iterator[str]:
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        function = getattr(found, "fget", None) or getattr(found, "__func__", found)
        is_ours = isinstance(function, FunctionType) and function.__module__.startswith("everbeat.")
        if is_ours and not name.startswith("_") and not own_words(function):
            yield name


def test_every_public_name_and_method_says_what_it_is_for() -> None:
    assert list(undescribed()) == []


@pytest.mark.parametrize("kind", [Enum("Kind", "A"), type("Kind", (), {})])
def test_words_that_python_made_up_are_none(kind: type) -> None:
    assert not own_words(kind)
