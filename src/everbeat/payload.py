"""Arguments and results as typed JSON.

A call is stored as one JSON object, `{"a":1,"b":2}`, one member per argument that was given: readable in SQL, and still
valid after parameters were reordered or got a default. `*args` and `**kwargs` are members of their own.

Types come from the function's annotations only, never from the data: decoding can not be made to build anything else.
What leaves here is proven to come back: every payload is decoded again and compared before it is stored, so wrong types
fail where the call was written and not in a worker at night. That costs about a microsecond for a small call, and a
third of it for one of many, which are encoded, decoded and compared a thousand at a time.

Things that do not work: `msgspec.convert` as the check (a dataclass instance passes with wrong fields); trusting the
encoder (NaN becomes null, a str for `bytes` is taken as base64, a subclass loses its own fields);
`inspect.Signature.bind` for every call (dearer than all the rest; the Struct's own constructor binds the common case).
"""

import inspect
import logging
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from inspect import Parameter
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from everbeat.changes import UNENCODABLE, differs, first_change, first_not_finite, first_unencodable
from everbeat.config.app import MAX_PAYLOAD_BYTES, MIB
from everbeat.custom_types import ENCODER, SUPPORTED, decode_custom, has_sets, readable, with_ordered_sets
from everbeat.errors import PayloadError, ResultTooLarge

H = TypeVar("H")
WARN_BYTES = MIB
UNDECODABLE = (ValueError, RecursionError, msgspec.MsgspecError)
AT_ARGUMENT = re.compile(r"(?P<what>.*?)(?: - at (?:`(?P<key>key)` in )?`\$\.(?P<where>[^`]*)`)", re.DOTALL)
log = logging.getLogger("everbeat.payload")


class Payload:
    """How the calls and results of one function travel. Annotations are resolved at first use, when all names exist."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        max_args_bytes: int = MAX_PAYLOAD_BYTES,
        max_result_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._function = function
        self._name = function.__name__
        self._max_args_bytes = max_args_bytes
        self._max_result_bytes = max_result_bytes
        self._heavy_bytes = min(WARN_BYTES, max_args_bytes)
        self._signature = inspect.signature(function)
        self._parameters = tuple(self._signature.parameters.values())
        self._is_plain = all(p.kind is Parameter.POSITIONAL_OR_KEYWORD for p in self._parameters)

    def check(self) -> None:
        """Resolve every annotation now. Raises PayloadError for one that can not travel."""
        _ = self._args_decoder, self._result_decoder

    # -- arguments --------------------------------------------------------------------------------------------------

    def encode_args(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """A call as bytes. TypeError for a call the function would not take, PayloadError for what can not travel."""
        call = self._bind(args, kwargs)
        try:
            raw = ENCODER.encode(self._in_order(call) if self._with_sets else call)
        except UNENCODABLE as error:
            raise self._unencodable(call, error) from error
        if len(raw) > self._heavy_bytes:
            self._weigh(raw)
        try:
            arrives = self._args_decoder.decode(raw)
        except msgspec.DecodeError as error:
            fault = self._not_finite(call) or _as_argument(str(error))
            raise PayloadError(f"{self._name}(): {fault}. Nothing was sent.") from error
        if differs(arrives, call):
            self._compare(call, arrives)
        return raw

    def encode_together(self, calls: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> list[bytes] | None:
        """Many calls, as `encode_args` does each of them, in half of the time. None: not so, one by one; if one of them
        is wrong, that says what about it."""
        try:
            if not self._is_plain or self._with_sets:
                return None
            shape = self._shape
            sent = [shape(*args, **kwargs) if kwargs else shape(*args) for args, kwargs in calls]
            lines = ENCODER.encode_lines(sent)
            arrive = self._args_decoder.decode_lines(lines)
        except (*UNENCODABLE, PayloadError):
            return None
        raws = lines.splitlines()
        if len(raws) != len(sent) or differs(arrive, sent) or max(map(len, raws), default=0) > self._heavy_bytes:
            return None
        return raws

    def decode_args(self, raw: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call that `encode_args` stored, by the annotations of today."""
        try:
            call = self._args_decoder.decode(raw)
        except UNDECODABLE as error:
            raise PayloadError(
                f"the arguments do not fit {self._name}{self._signature}: {_as_argument(str(error))}"
            ) from error
        return self._spread(call)

    def read_args(self, args: Sequence[Any] | Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call written in plain JSON values, by position or by name, with the types of the annotations."""
        call = self._bind((), args) if isinstance(args, Mapping) else self._bind(tuple(args), {})
        try:
            raw = ENCODER.encode(call)
        except UNENCODABLE as error:
            raise self._unencodable(call, error) from error
        return self.decode_args(raw)

    def encode_with_holes(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], hole: type[H]
    ) -> tuple[bytes, list[tuple[int, H]]]:
        """A call some of whose values are not known yet, alone or in lists and dicts: `null` stands for each instance
        of `hole`, and its place is counted in bytes. Arguments without holes are checked as in every call."""
        call = self._bind(args, kwargs)
        given = {name: value for name in call.__struct_fields__ if (value := getattr(call, name)) is not UNSET}
        if not any(_has_hole(value, hole) for value in given.values()):
            return self.encode_args(args, kwargs), []
        parts: list[bytes | H] = []
        for name, value in given.items():
            parts += (b"," if parts else b"{", ENCODER.encode(name), b":")
            parts += self._parts_of(value, hole, name)
        places: list[tuple[int, H]] = []
        raw = bytearray()
        for part in (*parts, b"}"):
            if isinstance(part, bytes):
                raw += part
            else:
                places.append((len(raw), part))
                raw += b"null"
        if len(raw) > self._heavy_bytes:
            self._weigh(bytes(raw))
        return bytes(raw), places

    def faults(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], hole: type[H]) -> list[str]:
        """What is wrong with a call that was refused: with its form, and with each value in it."""
        found: list[str] = []
        try:
            self._bind(args, kwargs)
        except PayloadError as error:  # it is the fault of the function
            return [str(error)]
        except TypeError as error:
            found.append(str(error))
        for name, value in self.fitted(args, kwargs):
            try:
                self._parts_of(value, hole, name)
            except PayloadError as error:
                found.append(str(error))
        return found

    def fitted(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The values of a call, each with the name of its argument; also of one that the function would not take, in
        which two may have one name. Values by position that are too many are left out."""
        found: list[tuple[str, Any]] = []
        named = dict(kwargs)
        places = list(args)
        for parameter in self._parameters:
            if parameter.kind is Parameter.VAR_POSITIONAL:
                found += [(parameter.name, places)] if places else []
                places = []
            elif parameter.kind is Parameter.VAR_KEYWORD:
                found += [(parameter.name, named)] if named else []
                named = {}
            else:
                by_place = parameter.kind is not Parameter.KEYWORD_ONLY and places
                found += [(parameter.name, places.pop(0))] if by_place else []
                found += [(parameter.name, named.pop(parameter.name))] if parameter.name in named else []
        return [*found, *named.items()]

    def _parts_of(self, value: Any, hole: type[H], name: str) -> list[bytes | H]:
        """One argument of a call, with the holes in it."""
        hint = self._readable_hints.get(name, Any)
        if not _has_hole(value, hole):
            return [self._part(name, value, hint, with_sets=name in self._with_sets)]
        try:
            return list(self._with_holes(value, hole, name, hint))
        except RecursionError as error:
            said = f"argument {name!r} contains itself, or is nested too deeply"
            raise PayloadError(f"{self._name}(): {said}. Nothing was sent.") from error

    def _with_holes(self, value: Any, hole: type[H], path: str, hint: Any) -> Iterator[bytes | H]:
        if isinstance(value, hole):
            yield value
        elif not _has_hole(value, hole):
            yield self._part(path, value, hint)
        elif isinstance(value, dict):
            inside = _hint_inside(hint, (dict, Mapping))
            for index, (key, part) in enumerate(value.items()):
                if not isinstance(key, str):
                    said = f"{path!r} has keys that are no text, beside results of nodes"
                    raise PayloadError(f"{self._name}(): argument {said}. Nothing was sent.")
                yield from (b"," if index else b"{", ENCODER.encode(key), b":")
                yield from self._with_holes(part, hole, f"{path}[{key!r}]", inside)
            yield b"}"
        else:
            inside = _hint_inside(hint, (list, tuple, Sequence))
            for index, part in enumerate(value):
                yield b"," if index else b"["
                yield from self._with_holes(part, hole, f"{path}[{index}]", inside)
            yield b"]"

    def _part(self, path: str, value: Any, hint: Any, *, with_sets: bool = True) -> bytes:
        """A value in a call that is not known as a whole. `hint`: UNSET if its annotation is not known either."""
        try:
            raw = ENCODER.encode(with_ordered_sets(value) if with_sets else value)
            decoder = None if hint is UNSET else msgspec.json.Decoder(hint, dec_hook=decode_custom)
            arrives = value if decoder is None else decoder.decode(raw)
        except msgspec.DecodeError as error:
            fault = first_not_finite(value, path) or f"{path!r}: {error}"
            raise PayloadError(f"{self._name}(): argument {fault}. Nothing was sent.") from error
        except UNENCODABLE as error:
            fault = first_unencodable(value, path) or f"{path!r} can not be encoded: {error}"
            raise PayloadError(f"{self._name}(): argument {fault}. Nothing was sent.") from error
        change = first_change(value, arrives, path) if differs(arrives, value) else None
        change = change or first_not_finite(value, path)
        if change is not None:
            raise PayloadError(f"{self._name}(): argument {change}. Nothing was sent.")
        return raw

    def _in_order(self, call: msgspec.Struct) -> msgspec.Struct:
        """The same call, for the encoder: the same bytes whatever the hashes of this process are."""
        given = {name: getattr(call, name) for name in self._with_sets}
        ordered = {name: with_ordered_sets(value) for name, value in given.items() if value is not UNSET}
        return msgspec.structs.replace(call, **ordered)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> msgspec.Struct:
        shape = self._shape
        if self._is_plain:
            try:
                return shape(*args, **kwargs)
            except TypeError:
                pass  # a wrong call: inspect has the words for it
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{self._name}() {'; '.join([str(error), *self._misfits(args, kwargs, str(error))])}"
            ) from None
        return shape(**bound.arguments)

    def _misfits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], said: str) -> Iterator[str]:
        """What else is wrong with a call: inspect tells of the first only."""
        kinds = {parameter.kind for parameter in self._parameters}
        by_name = [
            one for one in self._parameters if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        ]
        given = {one.name for one in self._parameters[: len(args)]} | set(kwargs)
        for parameter in by_name:
            fault = f"missing a required argument: {parameter.name!r}"
            if parameter.default is Parameter.empty and parameter.name not in given and fault not in said:
                yield fault
        if Parameter.VAR_KEYWORD not in kinds:
            for name in kwargs:
                fault = f"got an unexpected keyword argument {name!r}"
                if name not in {one.name for one in by_name} and fault not in said:
                    yield fault

    def _spread(self, call: msgspec.Struct) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments as the function takes them: positions as far as there is no gap, names from there on."""
        if self._is_plain:
            given = msgspec.structs.astuple(call)
            if not any(value is UNSET for value in given):
                return given, {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_position = True
        for parameter in self._parameters:
            value = getattr(call, parameter.name)
            if parameter.kind is Parameter.VAR_POSITIONAL:
                args.extend(() if value is UNSET else value)
                by_position = False
            elif parameter.kind is Parameter.VAR_KEYWORD:
                kwargs.update({} if value is UNSET else value)
            elif value is UNSET:
                by_position = False
            elif by_position and parameter.kind is not Parameter.KEYWORD_ONLY:
                args.append(value)
            else:
                kwargs[parameter.name] = value
        return tuple(args), kwargs

    def _unencodable(self, call: msgspec.Struct, error: Exception) -> PayloadError:
        for name in call.__struct_fields__:
            value = getattr(call, name)
            fault = None if value is UNSET else first_unencodable(value, name)
            if fault is not None:
                return PayloadError(f"{self._name}(): argument {fault}. Nothing was sent.")
        return PayloadError(f"{self._name}(): the arguments can not be encoded: {error}. Nothing was sent.")

    def _not_finite(self, call: msgspec.Struct) -> str | None:
        faults = (first_not_finite(getattr(call, name), name) for name in call.__struct_fields__)
        return next((f"argument {fault}" for fault in faults if fault), None)

    def _compare(self, call: msgspec.Struct, arrives: msgspec.Struct) -> None:
        for name in call.__struct_fields__:
            change = first_change(getattr(call, name), getattr(arrives, name), name)
            if change is not None:
                raise PayloadError(f"{self._name}(): argument {change}. Nothing was sent.")

    def _weigh(self, raw: bytes) -> None:
        limit = self._max_args_bytes
        if len(raw) > limit:
            raise PayloadError(
                f"{self._name}(): the arguments take {len(raw):,} bytes, the limit is {limit:,}. Nothing was sent. "
                f"Store large data elsewhere and send a reference to it."
            )
        log.warning("payload.large function=%s arguments=%d limit=%d", self._name, len(raw), limit)

    # -- results ----------------------------------------------------------------------------------------------------

    def encode_result(self, value: Any) -> bytes:
        """PayloadError for a result that does not fit the return annotation, ResultTooLarge for one over the limit."""
        try:
            raw = ENCODER.encode(value)
        except UNENCODABLE as error:
            fault = first_unencodable(value, "result") or f"can not be encoded: {error}"
            raise PayloadError(f"{self._name}() returned a value that can not be stored: {fault}") from error
        if len(raw) > self._max_result_bytes:
            raise ResultTooLarge(
                f"{self._name}() returned {len(raw):,} bytes, the limit is {self._max_result_bytes:,}. "
                f"Its code has run. Store large data elsewhere and return a reference to it."
            )
        if len(raw) > WARN_BYTES:
            log.warning("payload.large function=%s result=%d limit=%d", self._name, len(raw), self._max_result_bytes)
        try:
            arrives = self._result_decoder.decode(raw)
        except msgspec.DecodeError as error:
            fault = first_not_finite(value, "result") or _in_result(str(error))
            raise PayloadError(f"{self._name}() returned a value that does not fit its annotation: {fault}") from error
        if differs(arrives, value):
            change = first_change(value, arrives, "result")
            if change is not None:
                raise PayloadError(f"{self._name}() returned a value that can not be stored: {change}")
        return raw

    def decode_result(self, raw: bytes | None) -> Any:
        if raw is None:
            return None
        try:
            return self._result_decoder.decode(raw)
        except UNDECODABLE as error:
            fault = _in_result(str(error))
            raise PayloadError(f"the stored result does not fit the annotation of {self._name}(): {fault}") from error

    # -- types ------------------------------------------------------------------------------------------------------

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._function, include_extras=True)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            raise PayloadError(
                f"the annotations of {self._name}() can not be resolved: {error}. Import the names they use "
                f"at the top of the module, not only under TYPE_CHECKING."
            ) from error

    @cached_property
    def _readable_hints(self) -> dict[str, Any]:
        """The annotation of each parameter as it is decoded."""
        return {
            parameter.name: _require_readable(
                _of_each(parameter, self._hints.get(parameter.name, Any)),
                f"parameter {parameter.name!r} of {self._name}()",
                is_needed=parameter.default is Parameter.empty,
            )
            for parameter in self._parameters
        }

    @cached_property
    def _with_sets(self) -> frozenset[str]:
        return frozenset(name for name, hint in self._readable_hints.items() if has_sets(hint))

    @cached_property
    def _shape(self) -> type[msgspec.Struct]:
        """A Struct with one field for each parameter. One left UNSET is not stored: the function's default applies."""
        fields = [_field(parameter, self._readable_hints[parameter.name]) for parameter in self._parameters]
        # kw_only only lifts the rule that fields with defaults come last, which keyword-only parameters need not obey.
        return msgspec.defstruct(self._name, fields, forbid_unknown_fields=True, kw_only=not self._is_plain, gc=False)

    @cached_property
    def _args_decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._shape, dec_hook=decode_custom)

    @cached_property
    def _result_decoder(self) -> msgspec.json.Decoder[Any]:
        hint = _require_readable(self._hints.get("return", Any), f"the return annotation of {self._name}()")
        return msgspec.json.Decoder(hint, dec_hook=decode_custom)


def decode_plain(raw: bytes | None) -> Any:
    """A result whose function is not known here: plain JSON values."""
    return None if raw is None else msgspec.json.decode(raw)


def _has_hole(value: Any, hole: type) -> bool:
    """Also in what contains itself, which can not be encoded anyway."""
    waiting, seen = [value], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, hole):
            return True
        if isinstance(one, list | tuple | dict) and id(one) not in seen:
            seen.add(id(one))
            waiting += one.values() if isinstance(one, dict) else one
    return False


def _hint_inside(hint: Any, kinds: Collection[Any]) -> Any:
    """The annotation of what is in a list or a dict; UNSET if there is not one for all of it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        fitting = [one for one in typing.get_args(hint) if (typing.get_origin(one) or one) in kinds]
        return _hint_inside(fitting[0], kinds) if len(fitting) == 1 else UNSET
    if hint is Any or hint in kinds:
        return Any
    if typing.get_origin(hint) not in kinds:
        return UNSET
    inside = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return inside[0] if inside[1:] == (Ellipsis,) else UNSET
    return inside[-1]


def _of_each(parameter: Parameter, hint: Any) -> Any:
    """What the parameter holds as a whole: `*args: int` is a list of them, `**kwargs: Unpack[Options]` one of these."""
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return list[hint]
    if parameter.kind is not Parameter.VAR_KEYWORD:
        return hint
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Unpack else dict[str, hint]


def _field(parameter: Parameter, hint: Any) -> Any:
    is_variable = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    if parameter.default is Parameter.empty and not is_variable:
        return parameter.name, hint
    return parameter.name, hint, msgspec.field(default=UNSET)


def _require_readable(hint: Any, what: str, *, is_needed: bool = True) -> Any:
    try:
        hint = readable(hint, is_needed=is_needed)
        msgspec.json.Decoder(hint)
    except TypeError as error:
        raise PayloadError(f"{what} has a type that can not be read from JSON: {error}") from error
    except RecursionError as error:
        raise PayloadError(f"{what} has a type alias that contains itself; {SUPPORTED}, or Any") from error
    return hint


def _as_argument(message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.a`", with the argument first."""
    said = AT_ARGUMENT.fullmatch(message)
    if said is None:
        return message
    return f"argument {said['where']!r}: {said['what']}{' for a key' if said['key'] else ''}"


def _in_result(message: str) -> str:
    return message.replace(" - at `$", " - at `result")
