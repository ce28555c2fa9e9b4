"""Types that msgspec leaves to us: paths, pydantic models, subclasses of text and numbers, and annotations it has other
words for.

The type is always that of the annotation: nothing here looks at the data to choose one.
"""

import inspect
import sys
import typing
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec
import msgspec.inspect

SUPPORTED = "use a dataclass, a msgspec Struct or a pydantic model"


class _TakesAll(type):
    """msgspec asks whether what was decoded is an instance; the adapter has made sure of it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class Adapted(metaclass=_TakesAll):
    """Stands for an annotation that only pydantic can read, such as a union with a model in it. Subclassed for each."""

    adapter: Any


def is_model(cls: object) -> bool:
    pydantic = sys.modules.get("pydantic")  # whoever has a model has imported it
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def encode_custom(value: Any) -> Any:
    match value:
        case PurePath():
            return str(value)
        case str():  # of a subclass, as are the next: without it they are still the same text or number
            return "".join((value,))
        case int():
            return int.__add__(value, 0)
        case float():
            return float.__mul__(value, 1.0)
    if is_model(type(value)):
        return msgspec.Raw(_model_json(value))
    if inspect.iscoroutine(value):
        raise NotImplementedError(
            "nobody has awaited it; what calls an async function must be one itself, and await it"
        )
    raise NotImplementedError(f"{type_name(type(value))} has no JSON form; {SUPPORTED}")


def _model_json(model: Any) -> bytes:
    from pydantic_core import PydanticSerializationError

    try:
        return bytes(model.model_dump_json(round_trip=True, by_alias=True, warnings=False).encode())
    except PydanticSerializationError as error:
        advice = "; bytes in a model need ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
        raise ValueError(f"{error}{advice if 'utf-8' in str(error) else ''}") from error


def decode_custom(cls: type, value: Any) -> Any:
    if issubclass(cls, PurePath):
        return cls(value)
    if issubclass(cls, Adapted):
        return cls.adapter.validate_json(msgspec.json.encode(value))
    if is_model(cls):
        return cls.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
    raise TypeError(f"{type_name(cls)} can not be read from JSON; {SUPPORTED}")


ENCODER = msgspec.json.Encoder(enc_hook=encode_custom)
_IN_ORDER = msgspec.json.Encoder(enc_hook=encode_custom, order="deterministic")


def with_ordered_sets(value: Any) -> Any:
    """The same value to the encoder, whatever order the hashes of this process give to its sets. Dicts keep their own,
    but for those inside of objects."""
    if isinstance(value, set | frozenset):
        return [msgspec.Raw(element) for element in sorted(map(_IN_ORDER.encode, value))]
    if isinstance(value, dict):
        return {key: with_ordered_sets(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_ordered_sets(part) for part in value]
    try:
        return msgspec.Raw(_IN_ORDER.encode(value))
    except TypeError:  # a dict in it has keys that are no text, which only this turns into one before it sorts them
        return msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=encode_custom)


def has_sets(hint: Any) -> bool:
    """Whether values of this annotation may hold sets, at any depth. What pydantic encodes is not looked into."""
    sets = (msgspec.inspect.SetType, msgspec.inspect.FrozenSetType)
    return any(isinstance(part, sets) for part in _parts(msgspec.inspect.type_info(hint)))


def readable(hint: Any, *, is_needed: bool = True) -> Any:
    """The annotation as msgspec can take it. TypeError for one that nobody can read from JSON; a class that we do not
    know is one of these if it `is_needed`, and is refused when it is used if it is not."""
    if hint is object:
        return Any
    try:
        info = msgspec.inspect.type_info(hint)
    except TypeError:
        if not any(is_model(part) for part in _classes_in(hint)):
            raise
        return _adapted(hint)
    unknown = next((cls for cls in _custom_types(info) if not _is_known(cls)), None)
    if unknown is not None and is_needed:
        raise TypeError(f"{type_name(unknown)} can not be read from JSON; {SUPPORTED}")
    return hint


def _adapted(hint: Any) -> type[Adapted]:
    from pydantic import TypeAdapter

    class OfThisHint(Adapted):
        adapter = TypeAdapter(hint)

    return OfThisHint


def _is_known(cls: Any) -> bool:
    origin = typing.get_origin(cls) or cls
    return isinstance(origin, type) and (issubclass(origin, PurePath | Adapted) or is_model(origin))


def _classes_in(hint: Any) -> Iterator[Any]:
    """The classes that an annotation is made of."""
    yield hint
    for part in typing.get_args(hint):
        yield from _classes_in(part)


def _custom_types(info: Any) -> Iterator[Any]:
    """The types in it, at any depth, that msgspec hands to us; and handles, of which it would make structs."""
    for part in _parts(info):
        is_struct = isinstance(part, msgspec.inspect.StructType)
        if isinstance(part, msgspec.inspect.CustomType) or (is_struct and is_handle(part.cls)):
            yield part.cls


def is_handle(cls: Any) -> bool:
    return type_name(typing.get_origin(cls) or cls) == "everbeat.handle.TaskHandle"


def _parts(info: Any) -> Iterator[Any]:
    """What a type is made of, at any depth."""
    seen: set[int] = set()
    waiting = [info]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, msgspec.Struct) and not isinstance(part, msgspec.inspect.CustomType):
            waiting += [getattr(part, name) for name in part.__struct_fields__ if name not in ("default", "cls")]
        elif isinstance(part, tuple):
            waiting += part


def type_name(cls: Any) -> str:
    name = getattr(cls, "__qualname__", None) or str(cls)
    module = getattr(cls, "__module__", "builtins")
    return name if module == "builtins" else f"{module}.{name}"
