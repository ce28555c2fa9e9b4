"""Say where a value could not be encoded, or would come back as something else. Slow, and used only then.

No value is ever part of what is said: it may be a secret.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from everbeat.custom_types import ENCODER, is_handle, is_model, type_name

BY_IDENTITY: Any = object.__eq__
UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError, msgspec.MsgspecError)


def differs(arrives: Any, sent: Any) -> bool:
    """Whether a closer look is needed. Values may not know how to compare themselves."""
    try:
        return bool(arrives != sent)
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return True


def first_unencodable(value: Any, path: str) -> str | None:
    """The innermost part that has no JSON form, with its path."""
    try:
        ENCODER.encode(value)
    except RecursionError:
        return f"{path!r} contains itself, or is nested too deeply"
    except UNENCODABLE as error:
        if is_handle(type(value)):
            return f"{path!r} of type {type_name(type(value))} can not be encoded: it is no data; send its id"
        inner = (first_unencodable(part, where) for where, part in _parts(value, path))
        return next(filter(None, inner), f"{path!r} of type {type_name(type(value))} can not be encoded: {error}")
    return None


def first_not_finite(value: Any, path: str) -> str | None:
    """The first number that JSON has no word for: it is written as null, which would be all that a decoder says."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path!r} is {value}, which JSON can not express"
    return next(filter(None, (first_not_finite(part, where) for where, part in _parts(value, path))), None)


def first_change(sent: Any, arrives: Any, path: str) -> str | None:
    """The first part that would come back as something else. A list and a tuple count as the same thing."""
    if isinstance(sent, float) and not math.isfinite(sent):
        return f"{path!r} is {sent}, which JSON can not express"
    if isinstance(sent, Mapping) and isinstance(arrives, Mapping) and sent.keys() != arrives.keys():
        return _changed_keys(sent, arrives, path)
    if type(sent) is type(arrives) or {type(sent), type(arrives)} == {list, tuple}:
        return _changed_part(sent, arrives, path)
    if not differs(arrives, sent):
        return None
    was, becomes = type_name(type(sent)), type_name(type(arrives))
    return f"{path!r} is a {was} and would come back as {becomes}; annotate it, or pass what its annotation says"


def _changed_keys(sent: Mapping[Any, Any], arrives: Mapping[Any, Any], path: str) -> str:
    if len(sent) > len(arrives) and sent.keys() > arrives.keys():
        return f"{path!r} has keys that its annotation does not have, and would come back without them"
    return f"{path!r} has keys that would come back as text; annotate it, for example dict[int, str]"


def _changed_part(sent: Any, arrives: Any, path: str) -> str | None:
    there, back = list(_parts(sent, path)), list(_parts(arrives, path))
    if there or back:
        pairs = zip(there, back, strict=False)
        return next(filter(None, (first_change(s, a, where) for (where, s), (_, a) in pairs)), None)
    if isinstance(sent, list | tuple) or not _knows_itself(sent) or _is_same(sent, arrives):
        return None
    return f"{path!r} of type {type_name(type(sent))} would come back changed{_advice(sent)}"


def _knows_itself(value: Any) -> bool:
    """Whether it says of another one if that is the same. What compares by identity does not, nor does NaN."""
    return type(value).__eq__ is not BY_IDENTITY and not differs(value, value)


def _advice(value: Any) -> str:
    if isinstance(value, datetime):
        return "; an offset with seconds is not kept"
    if hasattr(value, "get_secret_value"):
        return "; it is written as asterisks: send a plain value, or better a reference to where it is kept"
    return ""


def _is_same(sent: Any, arrives: Any) -> bool:
    if isinstance(sent, datetime) and isinstance(arrives, datetime):
        return _by_the_clock(sent) == _by_the_clock(arrives)  # moments of two zones in a repeated hour are never equal
    return not differs(arrives, sent)


def _by_the_clock(at: datetime) -> tuple[datetime, timedelta | None]:
    return at.replace(tzinfo=None, fold=0), at.utcoffset()


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What a value consists of, each part with its path. Nothing for values without parts."""
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", value[key]) for key in value)
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, msgspec.Struct):
        yield from _fields(value, value.__struct_fields__, path)
    elif dataclasses.is_dataclass(value):
        yield from _fields(value, [field.name for field in dataclasses.fields(value)], path)
    elif hasattr(type(value), "__attrs_attrs__"):
        yield from _fields(value, [field.name for field in type(value).__attrs_attrs__], path)
    elif is_model(type(value)):
        own = {**vars(value), **(value.__pydantic_private__ or {}), **(value.__pydantic_extra__ or {})}
        yield from ((f"{path}.{name}", part) for name, part in own.items())


def _fields(value: Any, names: Iterable[str], path: str) -> Iterator[tuple[str, Any]]:
    """One that nobody has set is None here."""
    return ((f"{path}.{name}", getattr(value, name, None)) for name in names)
