"""Whatever the annotation and whatever the value: it comes back as it was, or is refused. Never anything else."""

import enum
import json
import math
import uuid
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from everbeat.errors import PayloadError
from everbeat.payload import Payload

Typed = tuple[Any, Any]
"""An annotation and a value that fits it."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=12))])


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    left: int
    right: datetime


class Options(TypedDict, total=False):
    size: int
    at: date


class Order(msgspec.Struct):
    number: int
    at: datetime
    price: Decimal = Decimal(0)


@attrs.define
class Part:
    name: str
    weight: float


class Invoice(pydantic.BaseModel):
    number: int
    due: date
    lines: list[Decimal] = []
    file: Path | None = None


LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: TEXT,
    bytes: st.binary(max_size=20),
    None: st.none(),
    datetime: st.datetimes(timezones=ZONES) | st.datetimes(),
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(),
    uuid.UUID: st.uuids(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
    Path: TEXT.filter(lambda text: "\0" not in text).map(Path),
    PurePosixPath: TEXT.map(PurePosixPath),
    Colour: st.sampled_from(Colour),
    Level: st.sampled_from(Level),
    Pair: st.builds(Pair, st.integers(), st.datetimes(timezones=ZONES)),
    Options: st.fixed_dictionaries({}, optional={"size": st.integers(), "at": st.dates()}),
    Order: st.builds(Order, st.integers(), st.datetimes(timezones=ZONES), st.decimals(allow_nan=False, places=2)),
    Part: st.builds(Part, TEXT, st.floats(allow_nan=False, allow_infinity=False)),
    Invoice: st.builds(
        Invoice,
        number=st.integers(),
        due=st.dates(),
        lines=st.lists(st.decimals(allow_nan=False, allow_infinity=False), max_size=3),
        file=st.none() | st.just(Path("a/b")),
    ),
}
KEYS = [str, int, date, uuid.UUID, Colour]
HASHABLE = [int, str, bytes, date, uuid.UUID, Decimal, Level]


def leaf() -> st.SearchStrategy[Typed]:
    return st.one_of([values.map(lambda value, hint=hint: (hint, value)) for hint, values in LEAVES.items()])


def in_a_record(inner: Typed) -> Typed:
    record = make_dataclass("Record", [("item", inner[0]), ("items", list[inner[0]])])
    return record, record(inner[1], [inner[1], inner[1]])


def containers(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        inner.map(lambda one: (list[one[0]], [one[1]] * 2)),  # type: ignore[name-defined]
        inner.map(lambda one: (tuple[one[0], ...], (one[1],))),  # type: ignore[name-defined]
        st.tuples(inner, inner).map(lambda two: (tuple[two[0][0], two[1][0]], (two[0][1], two[1][1]))),
        inner.map(lambda one: (one[0] if one[0] is None else one[0] | None, one[1])),
        inner.map(lambda one: (one[0] if one[0] is None else one[0] | None, None)),
        inner.map(in_a_record),
        st.sampled_from(KEYS).flatmap(
            lambda key: st.tuples(LEAVES[key], inner).map(lambda made: (dict[key, made[1][0]], {made[0]: made[1][1]}))
        ),
        st.sampled_from(HASHABLE).flatmap(
            lambda item: st.sets(LEAVES[item], max_size=3).map(lambda made: (set[item], made))  # type: ignore[valid-type]
        ),
        st.sampled_from(HASHABLE).flatmap(
            lambda item: st.frozensets(LEAVES[item], max_size=3).map(lambda made: (frozenset[item], made))  # type: ignore[valid-type]
        ),
    )


TYPED = st.recursive(leaf(), containers, max_leaves=4)
ODD = st.one_of(
    st.floats(),
    st.datetimes(timezones=st.timezones()),
    st.builds(datetime.replace, st.datetimes(), tzinfo=st.just(timezone(timedelta(seconds=30)))),
    st.sampled_from([Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), "\ud800", 10**400, 1j, object(), range(3)]),
    st.text(max_size=5),
)
VALUES = TYPED.map(lambda typed: typed[1]) | ODD
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
HINTS = TYPED.map(lambda typed: typed[0]) | st.just(Any)


def payload_of(hint: Any) -> Payload:
    def function(x, *rest, **more):  # type: ignore[no-untyped-def]
        pass

    function.__annotations__ = {"x": hint, "rest": hint, "more": hint, "return": hint}
    return Payload(function)


def is_same(sent: Any, back: Any, *, strictly: bool) -> bool:
    """Equal at every depth; strictly: of the same types, too."""
    if strictly and type(sent) is not type(back):
        return False
    if isinstance(sent, float) and isinstance(back, float):
        return sent == back and math.copysign(1, sent) == math.copysign(1, back)
    if isinstance(sent, Decimal):
        return str(sent) == str(back)
    if isinstance(sent, datetime) and isinstance(back, datetime) and sent.tzinfo and back.tzinfo:
        return sent.replace(tzinfo=None) == back.replace(tzinfo=None) and sent.utcoffset() == back.utcoffset()
    if isinstance(sent, dict) and isinstance(back, dict):
        pairs = zip(sent.items(), back.items(), strict=True)
        return len(sent) == len(back) and all(is_same(s, b, strictly=strictly) for s, b in pairs)
    if isinstance(sent, list | tuple) and isinstance(back, list | tuple):
        return len(sent) == len(back) and all(map(lambda s, b: is_same(s, b, strictly=strictly), sent, back))
    if is_dataclass(sent) and is_dataclass(back):
        names = [field.name for field in fields(sent)]
        return all(is_same(getattr(sent, name), getattr(back, name), strictly=strictly) for name in names)
    return bool(sent == back)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TYPED)
@example((datetime, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=45)))))
def test_a_value_that_fits_its_annotation_comes_back_as_it_was(typed: Typed) -> None:
    hint, value = typed
    payload = payload_of(hint)

    args, kwargs = payload.decode_args(payload.encode_args((value, value), {"one": value}))

    assert all(is_same(value, back, strictly=True) for back in (*args, *kwargs.values()))
    assert (len(args), list(kwargs)) == (2, ["one"])
    assert is_same(value, payload.decode_result(payload.encode_result(value)), strictly=True)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HINTS, VALUES)
def test_a_value_of_any_type_comes_back_equal_or_is_refused_where_it_was_sent(hint: Any, value: Any) -> None:
    payload = payload_of(hint)
    for there, back in ((_args, lambda raw: payload.decode_args(raw)[0][0]), (_result, payload.decode_result)):
        try:
            raw = there(payload, value)
        except PayloadError as refused:
            note(str(refused))
        else:
            assert is_same(value, back(raw), strictly=False)


def _args(payload: Payload, value: Any) -> bytes:
    return payload.encode_args((value,), {})


def _result(payload: Payload, value: Any) -> bytes:
    return payload.encode_result(value)


@settings(max_examples=300, deadline=None)
@given(HINTS, st.binary(max_size=60) | JSON.map(lambda value: json.dumps({"x": value}).encode()))
def test_stored_bytes_are_read_by_the_annotation_or_refused(hint: Any, raw: bytes) -> None:
    payload = payload_of(hint)
    for read in (payload.decode_args, payload.decode_result):
        try:
            read(raw)
        except PayloadError:
            continue


@given(st.datetimes(timezones=st.just(ZoneInfo("Europe/Berlin"))))
def test_the_moment_is_kept_in_the_hour_that_comes_twice(at: datetime) -> None:
    payload = payload_of(datetime)
    for fold in (0, 1):
        sent = at.replace(fold=fold)
        try:
            ((back, *_), _) = payload.decode_args(payload.encode_args((sent,), {}))
        except PayloadError:  # Berlin had an offset with seconds before 1893
            assert sent.utcoffset() != timedelta(minutes=round((sent.utcoffset() or timedelta()).total_seconds() / 60))
        else:
            assert back.astimezone(UTC) == sent.astimezone(UTC)


@dataclass
class Holder:
    model: Invoice


@given(LEAVES[Invoice])
def test_a_model_inside_a_dataclass_travels(invoice: Invoice) -> None:
    payload = payload_of(Holder | None)

    ((back, *_), _) = payload.decode_args(payload.encode_args((Holder(invoice),), {}))

    assert back == Holder(invoice)
