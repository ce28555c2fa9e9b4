"""What can be said to `everbeat`: commands in groups, and the words after a command.

A command is a function whose parameters say what they are: `Annotated[int, Option(min=1)]`, `Annotated[str,
Argument(metavar="ID")]`. Words in, a call of the function out. The help that is made of it is in `manual.py`.

Things that do not work: a library that does the same. typer asks pydantic about every word; the two of them took as
much CPU as all the rest of a short command, and 14 MB in every worker for as long as it lived.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from everbeat.cli.ends import USAGE, Refused

HELP = "--help"
Function = Callable[..., None]
NUMBERS = {int: "whole number", float: "number"}
STORE = "URL"
"""The metavar of a store, which may name a file."""


@dataclass(frozen=True, slots=True)
class _Word:
    flag: str | None = None
    _: KW_ONLY
    metavar: str | None = None
    help: str = ""
    min: float | None = None
    max: float | None = None
    parser: Callable[[str], Any] | None = None
    envvar: str | None = None
    hidden: bool = False


class Option(_Word):
    """`--flag VALUE`; by default the flag is the name of the parameter. Of a bool: `--flag` alone."""


class Argument(_Word):
    """A word by its place."""


class Misused(Refused):
    """What was typed is no call of a command."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=USAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A parameter of a command."""

    name: str
    kind: Any
    is_list: bool
    default: Any
    said: Option | Argument

    @property
    def is_argument(self) -> bool:
        return isinstance(self.said, Argument)

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def takes_value(self) -> bool:
        return self.kind is not bool

    @property
    def word(self) -> str:
        """What a person calls it."""
        return self.said.metavar or self.name if self.is_argument else self.flag

    @property
    def flag(self) -> str:
        return self.said.flag or "--" + self.name.replace("_", "-")

    @property
    def value(self) -> str:
        """What stands for its value in a description."""
        if self.said.metavar is not None:
            return self.said.metavar
        return "|".join(_choices(self.kind)) or {int: "N", float: "X"}.get(self.kind, "TEXT")

    def read(self, text: str) -> Any:
        if self.said.parser is not None:
            try:
                return self.said.parser(text)
            except Refused as refused:
                raise Misused(f"{self.word}: {refused}") from refused
        if self.kind in NUMBERS:
            return self._number(text)
        if _choices(self.kind):
            return self._choice(text)
        if self.kind is not Path and self.said.metavar != STORE:
            self._require_text(text)
        return Path(text) if self.kind is Path else text

    def _require_text(self, text: str) -> None:
        """What a shell gave as bytes that are no UTF-8 may be the name of a file, and nothing that is stored."""
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Misused(f"{self.word} must be text in UTF-8, not {text!r}") from None

    def _number(self, text: str) -> Any:
        try:
            number = self.kind(text)
        except ValueError:
            number = math.nan
        low = -math.inf if self.said.min is None else self.said.min
        high = math.inf if self.said.max is None else self.said.max
        if not (math.isfinite(number) and low <= number <= high):
            raise Misused(f"{self.word} must be a {NUMBERS[self.kind]}{self.bounds}, not {text!r}")
        return number

    @property
    def bounds(self) -> str:
        low, high = self.said.min, self.said.max
        if high is None:
            return "" if low is None else f" from {low} on"
        return f" from {low} to {high}"

    def _choice(self, text: str) -> Any:
        for choice in self.kind:
            if choice.value.casefold() == text.strip().casefold():
                return choice
        raise Misused(f"{self.word} must be one of {', '.join(_choices(self.kind))}, not {text!r}")


def _choices(kind: Any) -> list[str]:
    return [choice.value for choice in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def params_of(function: Function) -> Iterator[Param]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        hint, said = get_args(hints[name])
        inner = [kind for kind in get_args(hint) if kind is not NoneType]
        kind = inner[0] if get_origin(hint) in (Union, UnionType) else hint
        is_list = get_origin(kind) is list
        kind = get_args(kind)[0] if is_list else kind
        yield Param(name=name, kind=kind, is_list=is_list, default=parameter.default, said=said)


# -- from words to a call ---------------------------------------------------------------------------------------------


def call_of(function: Function, words: Sequence[str]) -> dict[str, Any]:
    """The arguments of the function that these words stand for."""
    params = list(params_of(function))
    given = _sorted(params, words)
    call: dict[str, Any] = {}
    for param in params:
        texts = given[param.name] or _from_environment(param)
        if not texts and param.is_required:
            raise Misused(f"{param.word} is missing")
        if not texts:
            call[param.name] = param.default
        elif not param.takes_value:
            call[param.name] = True
        else:
            values = [param.read(text) for text in texts]
            call[param.name] = values if param.is_list else values[-1]
    return call


def _sorted(params: Sequence[Param], words: Sequence[str]) -> dict[str, list[str]]:
    """Each word with its parameter. Options may stand anywhere; after `--` there are none."""
    options = {param.flag: param for param in params if not param.is_argument}
    places = [param for param in params if param.is_argument]
    given: dict[str, list[str]] = {param.name: [] for param in params}
    rest = iter(words)
    ended = False
    for word in rest:
        if word == "--" and not ended:
            ended = True
        elif word.startswith("-") and word != "-" and not ended:
            flag, has_value, value = word.partition("=")
            param = options.get(flag)
            if param is None:
                raise Misused(f"there is no option {flag}{meant(flag, options)}")
            if has_value and not param.takes_value:
                raise Misused(f"{flag} takes no value")
            if param.takes_value and not has_value:
                value = next(rest, "--")
                if value == "--":
                    raise Misused(f"{flag} needs a value: {flag} {param.value}")
            given[param.name].append(value)
        else:
            place = next((param for param in places if param.is_list or not given[param.name]), None)
            if place is None:
                raise Misused(f"{word!r} is one word too many")
            given[place.name].append(word)
    return given


def _from_environment(param: Param) -> list[str]:
    found = os.environ.get(param.said.envvar) if param.said.envvar else None
    return [found] if found else []


def meant(word: str, known: Sequence[str] | dict[str, Any]) -> str:
    """What was probably meant."""
    from difflib import get_close_matches  # lazily: most people can spell

    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


# -- groups -----------------------------------------------------------------------------------------------------------


class Group:
    """Commands, and groups of commands, by name."""

    def __init__(self, about: str) -> None:
        self.about = about
        self.members: dict[str, Function | Group] = {}

    def command(self, name: str | None = None) -> Callable[[Function], Function]:
        def add(function: Function) -> Function:
            self.members[name or function.__name__] = function
            return function

        return add

    def find(self, path: list[str], words: list[str]) -> "Function | Group":
        """What the first of these words name. They move to the path; what is left is for the command that was found."""
        if not words or words[0] == HELP:
            return self
        path.append(words.pop(0))
        member = self.members.get(path[-1])
        if member is None:
            wrong = path.pop()
            raise Misused(f"there is no command {wrong!r}{meant(wrong, self.members)}")
        return member.find(path, words) if isinstance(member, Group) else member
