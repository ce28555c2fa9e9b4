"""What is sent comes back unchanged, or is refused where the call was written."""

import enum
import logging
import math
import sys
import timeit
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path as FilePath
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
    Unpack,
)

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat import Everbeat, TaskHandle
from everbeat.errors import PayloadError, ResultTooLarge
from everbeat.payload import Payload, decode_plain

if TYPE_CHECKING:
    from collections import Counter as OnlyForTypeCheckers


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    y: float = 0.0


@dataclass
class Point3(Point):
    z: int = 0


@dataclass
class Path:
    points: list[Point] = field(default_factory=list)


class Order(msgspec.Struct):
    number: int
    at: datetime


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    size: int
    colour: NotRequired[Colour]


class Invoice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    number: int = pydantic.Field(alias="invoiceNumber")
    due: date


T = TypeVar("T")
UserId = NewType("UserId", int)


@dataclass
class Box(Generic[T]):
    item: T


class Crate(msgspec.Struct, Generic[T]):
    item: T


class Parcel(pydantic.BaseModel, Generic[T]):
    item: T


class Cats(msgspec.Struct, tag=True):
    many: int


class Dogs(msgspec.Struct, tag=True):
    many: int


@attrs.define
class Gear:
    name: str
    at: list[datetime]


@pydantic.dataclasses.dataclass
class Stamp:
    number: int
    at: datetime


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Secretive(pydantic.BaseModel):
    shown: int
    _kept: int = pydantic.PrivateAttr(default=3)


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


@dataclass
class Late:
    at: int
    more: list[int] = field(default_factory=list, repr=False)


LATE = Late(1)
del LATE.more


class Raw(pydantic.BaseModel):
    raw: bytes


class Custom:
    pass


class Text(str):
    pass


class Whole(int):
    pass


class Broken(float):
    pass


NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


SECRETIVE = Secretive(shown=1)
SECRETIVE._kept = 9


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    payload = Payload(function)
    raw = payload.encode_args(args, kwargs)
    assert payload.encode_together([(args, kwargs)] * 2) in ([raw, raw], None)
    return payload.decode_args(raw)


def refusal(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Also of a call among many: that one has to be encoded by itself."""
    payload = Payload(function)
    with pytest.raises(PayloadError) as caught:
        payload.encode_args(args, kwargs)
    assert payload.encode_together([(args, kwargs)] * 2) is None
    return str(caught.value)


def taking(hint: Any) -> Callable[[Any], None]:
    """A function with one parameter `x` of the given type."""

    def function(x):  # type: ignore[no-untyped-def]
        pass

    function.__annotations__ = {"x": hint}
    return function


# -- what travels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 2**200),
        (int, -(2**63) - 1),
        (float, 0.1),
        (float, 1e300),
        (str, "naïve \U0001f600 \x00 \u2028"),
        (bool, True),
        (None, None),
        (bytes, b"\x00\xff"),
        (datetime, NOON),
        (datetime, datetime(2026, 3, 1, 12)),  # noqa: DTZ001
        (date, date(2026, 3, 1)),
        (time, time(12, 30)),
        (timedelta, timedelta(days=1, microseconds=1)),
        (uuid.UUID, uuid.UUID(int=7)),
        (Decimal, Decimal("1.10")),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Literal["a", "b"], "b"),
        (int | None, None),
        (int | str, "5"),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (dict[int, date], {1: date(2026, 3, 1)}),
        (dict[uuid.UUID, int], {uuid.UUID(int=7): 1}),
        (Point, Point(1, 2.5)),
        (Path, Path([Point(1), Point(2)])),
        (list[Point] | None, [Point(1)]),
        (Order, Order(7, NOON)),
        (Pair, Pair(1, "a")),
        (Options, {"size": 1, "colour": Colour.RED}),
        (Options, {"size": 1}),
        (Invoice, Invoice(invoiceNumber=5, due=date(2026, 3, 1))),
        (list[Invoice], [Invoice(invoiceNumber=5, due=date(2026, 3, 1))]),
        (Invoice | None, None),
        (Annotated[int, msgspec.Meta(ge=0)], 0),
        (Any, {"a": [1, 2.5, None, True, "x", {"b": {}}]}),
        (object, 5),
        (FilePath, FilePath("/a/b")),
        (dict[str, FilePath], {"a": FilePath("b")}),
        (Box[datetime], Box(NOON)),
        (Crate[int], Crate(1)),
        (Parcel[date], Parcel[date](item=date(2026, 3, 1))),
        (Cats | Dogs, Dogs(2)),
        (Gear, Gear("wheel", [NOON])),
        (Stamp, Stamp(3, NOON)),
        (Invoice | int, 5),
        (Invoice | Point, Point(1)),
        (list[Invoice | str], ["a", Invoice(invoiceNumber=5, due=date(2026, 3, 1))]),
        (UserId, UserId(3)),
        (Rights, Rights.READ | Rights.WRITE),
        (datetime, datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=timezone(timedelta(hours=1)))),
    ],
    ids=str,
)
def test_a_value_comes_back_as_its_annotated_type(hint: Any, value: Any) -> None:
    ((arrived,), _) = there_and_back(taking(hint), value)

    assert arrived == value
    assert type(arrived) is type(value)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(JSON_VALUES)
def test_plain_json_needs_no_annotation(value: Any) -> None:
    def function(x):  # type: ignore[no-untyped-def]
        pass

    ((arrived,), _) = there_and_back(function, value)

    assert arrived == value


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.timedeltas(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.binary(),
)
def test_moments_durations_decimals_and_bytes_are_exact(
    at: datetime, span: timedelta, price: Decimal, raw: bytes
) -> None:
    def function(at: datetime, span: timedelta, price: Decimal, raw: bytes) -> None: ...

    assert there_and_back(function, at, span, price, raw) == ((at, span, price, raw), {})


def test_a_tuple_without_annotation_arrives_as_a_list() -> None:
    assert there_and_back(taking(Any), (1, (2, 3))) == (([1, [2, 3]],), {})
    assert there_and_back(taking(Any), ((), [()])) == (([[], [[]]],), {})


def test_a_whole_number_is_good_enough_for_a_float() -> None:
    ((arrived,), _) = there_and_back(taking(float), 1)

    assert (arrived, type(arrived)) == (1.0, float)


# -- calls ------------------------------------------------------------------------------------------------------------


def every_kind(a: int, /, b: int, c: int = 3, *rest: Point, d: str, e: str = "e", **more: date) -> None: ...


def test_every_kind_of_parameter_travels() -> None:
    day = date(2026, 3, 1)

    assert there_and_back(every_kind, 1, 2, d="d") == ((1, 2), {"d": "d"})
    assert there_and_back(every_kind, 1, b=2, d="d", e="x") == ((1, 2), {"d": "d", "e": "x"})
    assert there_and_back(every_kind, 1, 2, 4, Point(5), Point(6), d="d", a=day, z=day) == (
        (1, 2, 4, Point(5), Point(6)),
        {"d": "d", "a": day, "z": day},
    )


def test_a_call_is_stored_as_an_object_with_names() -> None:
    def add(a: int, b: int = 2, c: int = 3) -> int: ...

    payload = Payload(add)

    assert payload.encode_args((1,), {}) == b'{"a":1}'
    assert payload.encode_args((1,), {"c": 5}) == b'{"a":1,"c":5}'
    assert payload.encode_args((), {"c": 5, "a": 1}) == payload.encode_args((1,), {"c": 5})


def test_a_default_is_applied_where_the_code_runs_and_not_stored() -> None:
    def function(a: int, marker: object = object()) -> None: ...

    assert there_and_back(function, 1) == ((1,), {})


def test_a_function_without_parameters_travels() -> None:
    def function() -> None: ...

    assert there_and_back(function) == ((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, r"add\(\) missing a required argument: 'a'"),
        ((1, 2, 3), {}, r"add\(\) too many positional arguments"),
        ((1,), {"c": 1}, r"add\(\) got an unexpected keyword argument 'c'"),
        ((1,), {"a": 1}, r"add\(\) multiple values for argument 'a'"),
        ((), {"c": 1, "d": 2}, r"add\(\) missing .*'a'; got an unexpected .*'c'; got an unexpected .*'d'"),
        ((1,), {"c": 1, "d": 2}, r"add\(\) got an unexpected .*'c'; got an unexpected .*'d'"),
    ],
)
def test_a_call_the_function_would_not_take_is_a_plain_type_error(args: Any, kwargs: Any, words: str) -> None:
    def add(a: int, b: int = 2) -> int: ...

    with pytest.raises(TypeError, match=words) as caught:
        Payload(add).encode_args(args, kwargs)

    assert not isinstance(caught.value, PayloadError)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (int, "x", "argument 'x': Expected `int`, got `str`"),
        (int, True, "argument 'x': Expected `int`, got `bool`"),
        (bool, 1, "argument 'x'"),
        (int, 1.5, "argument 'x'"),
        (Point, Point("a"), "argument 'x.x': Expected `int`, got `str`"),  # type: ignore[arg-type]
        (list[Point], [Point(1), Point("a")], "argument 'x[1].x'"),  # type: ignore[arg-type]
        (Annotated[int, msgspec.Meta(ge=0)], -1, "argument 'x': Expected `int` >= 0"),
        (Literal["a"], "b", "argument 'x': Invalid enum value 'b'"),
        (Invoice, Invoice.model_construct(number="five", due=date(2026, 3, 1)), "argument 'x'"),
        (bytes, "abcd", "'x' is a str and would come back as bytes"),
        (datetime, "2026-03-01T12:00:00Z", "'x' is a str and would come back as datetime.datetime"),
        (uuid.UUID, str(uuid.UUID(int=7)), "'x' is a str and would come back as uuid.UUID"),
        (Decimal, 0.1, "'x' is a float and would come back as decimal.Decimal"),
        (set[int], [1], "'x' is a list and would come back as set"),
        (Point, {"x": 1}, "'x' is a dict and would come back as"),
        (Point, Point3(1), "Point3 and would come back as"),
        (Any, NOON, "'x' is a datetime.datetime and would come back as str"),
        (Any, {"a": [NOON]}, """"x['a'][0]" is a datetime.datetime"""),
        (Any, Point(1), "Point and would come back as dict"),
        (Any, Pair(1, "a"), "Pair and would come back as list"),
        (Any, Colour.RED, "Colour and would come back as str"),
        (Any, {1}, "'x' is a set and would come back as list"),
        (Any, b"raw", "'x' is a bytes and would come back as str"),
        (Any, {1: "a"}, "'x' has keys that would come back as text"),
        (Any, math.nan, "'x' is nan, which JSON can not express"),
        (float, math.inf, "argument 'x' is inf, which JSON can not express"),
        (float | None, math.nan, "'x' is nan"),
        (list[float | None], [1.0, -math.inf], "'x[1]' is -inf"),
        (dict[str, float | None], {"a": math.nan}, "is nan"),
        (Any, object(), "'x' of type object can not be encoded"),
        (Any, [{"a": {"b": object()}}], """"x[0]['a']['b']" of type object can not be encoded"""),
        (Any, Path([object()]), "'x.points[0]' of type object"),  # type: ignore[list-item]
        (Any, {(1, 2): 3}, "'x' of type dict can not be encoded"),
        (Any, "\ud800", "'x' of type str can not be encoded"),
        (Any, 10**5000, "'x' of type int can not be encoded"),
        (Any, lambda: 1, "'x' of type function can not be encoded"),
        (Any, [Everbeat().handle("t1")], "'x[0]' of type everbeat.handle.TaskHandle can not be encoded: it is no data"),
        (datetime, NOON.replace(tzinfo=timezone(timedelta(seconds=30))), "an offset with seconds is not kept"),
        (Options, {"size": 1, "weight": 2}, "keys that its annotation does not have"),
        (Secretive, SECRETIVE, "'x._kept'"),
        (Login, Login(password="s3cret"), "'x.password' of type pydantic.types.SecretStr would come back changed"),  # type: ignore[arg-type]
        (list[Login], [Login(password="s3cret")], "'x[0].password' of type"),  # type: ignore[arg-type]
        (Late, LATE, "'x.more' is a NoneType and would come back as list"),
        (Raw, Raw(raw=b"\xff"), "ser_json_bytes='base64'"),
        (dict[bool, int], {True: 1}, "argument 'x': Expected `bool`, got `str` for a key"),
        (Invoice | int, "five", "argument 'x'"),
    ],
    ids=lambda part: part if isinstance(part, str) and part.isascii() else "",
)
def test_a_refused_value_is_named(hint: Any, value: Any, words: str) -> None:
    told = refusal(taking(hint), value)

    assert words in told
    assert told.endswith("Nothing was sent.")


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)

    assert "'x' contains itself" in refusal(taking(Any), circle)


@pytest.mark.parametrize("hint", [str | bytes, datetime | date, Point | Order])
def test_an_annotation_that_can_not_be_read_from_json_is_refused_by_name(hint: Any) -> None:
    with pytest.raises(PayloadError, match="parameter 'x' of function"):
        Payload(taking(hint)).check()


def test_a_class_that_json_can_not_make_is_refused() -> None:
    for hint in (Custom, list[Custom], dict[str, Custom | None], Box[Custom]):
        with pytest.raises(PayloadError, match=r"parameter 'x' of function.*Custom can not be read from JSON"):
            Payload(taking(hint)).check()


def test_a_handle_is_no_data() -> None:
    for hint in (TaskHandle, TaskHandle[int], list[TaskHandle[int]], Box[TaskHandle[int]]):
        with pytest.raises(PayloadError, match=r"parameter 'x' of function.*TaskHandle can not be read from JSON"):
            Payload(taking(hint)).check()

    def function(x: int, handle: TaskHandle[int] | None = None) -> None: ...

    assert there_and_back(function, 1) == ((1,), {})
    assert "'handle' of type everbeat.handle.TaskHandle" in refusal(function, 1, Everbeat().handle("t1"))


def test_a_class_that_json_can_not_make_may_be_the_type_of_a_default() -> None:
    def function(x: int, helper: Custom | None = None) -> None: ...

    assert there_and_back(function, 1) == ((1,), {})
    assert "'helper' of type" in refusal(function, 1, Custom())


@pytest.mark.parametrize(
    ("hint", "value"), [(str, Text("a")), (int, Whole(3)), (float, Broken(-0.0)), (Any, Text("a"))]
)
def test_a_subclass_of_text_or_number_arrives_as_plain_text_or_number(hint: Any, value: Any) -> None:
    ((arrived,), _) = there_and_back(taking(hint), value)

    assert (arrived, str(arrived), type(arrived)) == (value, str(value), type(value).__base__)


class Sizes(TypedDict):
    width: int
    at: NotRequired[datetime]


def test_keywords_may_be_typed_one_by_one() -> None:
    def function(**more: Unpack[Sizes]) -> None: ...

    assert there_and_back(function, width=1, at=NOON) == ((), {"width": 1, "at": NOON})
    assert "argument 'more.width'" in refusal(function, width="x")


def test_annotations_as_text_are_resolved_late() -> None:
    def function(x: "Point") -> "Point": ...

    assert there_and_back(function, Point(1)) == ((Point(1),), {})


if sys.version_info >= (3, 12):  # its syntax

    def test_a_type_alias_that_contains_itself_is_explained() -> None:
        names: dict[str, Any] = {}
        exec("type Json = dict[str, Json] | list[Json] | str | None\ndef show(x: Json) -> None: ...", names)

        with pytest.raises(
            PayloadError, match=r"parameter 'x' of show\(\) has a type alias that contains itself; use a"
        ):
            Payload(names["show"]).check()


def test_an_annotation_that_does_not_exist_at_run_time_is_explained() -> None:
    def function(x: "OnlyForTypeCheckers[str]") -> None: ...

    assert "'OnlyForTypeCheckers' is not defined" in refusal(function, 1)


def test_arguments_over_the_limit_are_refused_with_their_size() -> None:
    assert "take 17,825,800 bytes, the limit is 16,777,216" in refusal(taking(str), "x" * 17 * 1024 * 1024)


def test_many_calls_are_encoded_together() -> None:
    payload = Payload(taking(dict[str, datetime]))
    calls: list[Any] = [(({"\n": NOON},), {}), ((), {"x": {}})]

    assert payload.encode_together(calls) == [payload.encode_args(args, kwargs) for args, kwargs in calls]
    assert payload.encode_together(calls[:1])


@pytest.mark.parametrize("raw", [b"[1,\n2]", b'1}\n{"x":2', b'1} {"x":2'])
def test_values_that_would_be_read_as_other_lines_are_encoded_by_themselves(raw: bytes) -> None:
    assert Payload(taking(msgspec.Raw)).encode_together([((msgspec.Raw(raw),), {})]) is None


def test_one_of_many_calls_that_is_large_is_encoded_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    payload = Payload(taking(str), max_args_bytes=1024)

    assert payload.encode_together([(("x" * 1024,), {}), (("x",), {})]) is None
    assert payload.encode_together([(("x" * 1000,), {})] * 2) is not None


def test_large_arguments_are_sent_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    Payload(taking(str)).encode_args(("x" * 1024 * 1024,), {})

    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "arguments=1048584" in caplog.text


def test_the_limits_can_be_set() -> None:
    with pytest.raises(PayloadError, match="limit is 1,024"):
        Payload(taking(str), max_args_bytes=1024).encode_args(("x" * 1024,), {})


# -- what a worker meets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"a":1}', "missing required field `b`"),
        (b'{"a":1,"b":2,"c":3}', "unknown field `c`"),
        (b'{"a":1,"b":"x"}', "argument 'b': Expected `int`, got `str`"),
        (b"not json", "malformed"),
        (b'{"a":"\xff"}', "argument 'a'"),
        (b"", "truncated"),
    ],
)
def test_stored_arguments_that_do_not_fit_today_are_explained(raw: bytes, words: str) -> None:
    def add(a: int, b: int) -> int: ...

    with pytest.raises(PayloadError, match=r"do not fit add\(a: int, b: int\) -> int") as caught:
        Payload(add).decode_args(raw)

    assert words in str(caught.value)


def test_arguments_stay_readable_when_parameters_are_reordered_or_get_defaults() -> None:
    def old(a: int, b: int) -> None: ...

    def new(b: int, a: int, c: int = 3) -> None: ...

    assert Payload(new).decode_args(Payload(old).encode_args((1, 2), {})) == ((2, 1), {})


def test_plain_json_values_are_read_by_the_annotations() -> None:
    def function(at: datetime, points: list[Point], n: int = 1) -> None: ...

    payload = Payload(function)
    expected = ((NOON, [Point(1)]), {})

    assert payload.read_args(["2026-03-01T12:00:00.123456Z", [{"x": 1}]]) == expected
    assert payload.read_args({"points": [{"x": 1}], "at": "2026-03-01T12:00:00.123456Z"}) == expected
    with pytest.raises(PayloadError, match="argument 'at'"):
        payload.read_args(["noon", []])
    with pytest.raises(TypeError, match="missing a required argument: 'points'"):
        payload.read_args({"at": "noon"})


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 3),
        (None, None),
        (Point, Point(1)),
        (list[datetime], [NOON]),
        (Invoice, Invoice(invoiceNumber=5, due=date(2026, 3, 1))),
    ],
)
def test_a_result_comes_back_as_its_annotated_type(hint: Any, value: Any) -> None:
    def function(): ...  # type: ignore[no-untyped-def]

    function.__annotations__ = {"return": hint}
    payload = Payload(function)

    assert payload.decode_result(payload.encode_result(value)) == value


def test_a_result_without_annotation_is_plain_json() -> None:
    def function(): ...  # type: ignore[no-untyped-def]

    raw = Payload(function).encode_result({"a": [1]})

    assert raw == b'{"a":[1]}'
    assert decode_plain(raw) == {"a": [1]}
    assert decode_plain(None) is None


def test_a_result_that_does_not_fit_is_refused() -> None:
    def count() -> int: ...

    with pytest.raises(
        PayloadError, match=r"count\(\) returned a value that does not fit its annotation: Expected `int`"
    ):
        Payload(count).encode_result("many")
    with pytest.raises(
        PayloadError, match=r"count\(\) returned a value that can not be stored: 'result\[0\]' of type object"
    ):
        Payload(count).encode_result([object()])


def test_a_result_that_nobody_awaited_says_so() -> None:
    async def count() -> int: ...

    with (
        closing(count()) as coroutine,
        pytest.raises(PayloadError, match=r"of type coroutine .*: nobody has awaited it"),
    ):
        Payload(count).encode_result(coroutine)


def test_a_result_that_would_change_is_refused() -> None:
    def ratio() -> float | None: ...

    with pytest.raises(PayloadError, match="'result' is nan"):
        Payload(ratio).encode_result(math.nan)

    def login() -> Login: ...

    with pytest.raises(PayloadError, match=r"'result.password' .* would come back changed; it is written as asterisks"):
        Payload(login).encode_result(Login(password="s3cret"))  # type: ignore[arg-type]


def test_a_result_over_the_limit_is_its_own_error() -> None:
    def text() -> str: ...

    with pytest.raises(ResultTooLarge, match="returned 2,002 bytes, the limit is 1,024"):
        Payload(text, max_result_bytes=1024).encode_result("x" * 2000)


def test_a_stored_result_that_does_not_fit_today_is_explained() -> None:
    def count() -> int: ...

    with pytest.raises(PayloadError, match="stored result does not fit"):
        Payload(count).decode_result(b'"many"')


# -- cost -------------------------------------------------------------------------------------------------------------


def test_a_small_call_costs_less_than_ten_microseconds() -> None:
    def add(a: int, b: int) -> int: ...

    payload = Payload(add)
    payload.check()

    seconds = min(timeit.repeat(lambda: payload.encode_args((1, 2), {}), number=1000, repeat=5))

    assert seconds / 1000 < 10e-6


@dataclass
class Tagged:
    tags: frozenset[str]


def test_sets_are_stored_in_one_order_and_dicts_in_their_own() -> None:
    """Whatever the hashes of texts are in this process: the same call again has the same bytes."""

    def call(tags: set[str], more: dict[str, set[str]], one: Tagged, plain: dict[str, int]) -> None: ...

    words = [f"word-{number}" for number in range(30)]
    one = (set(words), {"z": set(words), "a": {"b"}}, Tagged(frozenset(words)), {"z": 1, "a": 2})
    raw = Payload(call).encode_args(one, {})

    stored = msgspec.json.decode(raw)
    assert stored["tags"] == stored["more"]["z"] == stored["one"]["tags"] == sorted(words)
    assert (list(stored["more"]), list(stored["plain"])) == (["z", "a"], ["z", "a"])
    assert Payload(call).decode_args(raw) == (one, {})


@dataclass
class Numbered:
    by_number: dict[int, set[str]]


def test_sets_under_keys_that_are_no_text_are_stored_in_one_order_too() -> None:
    def call(one: Numbered) -> None: ...

    words = {f"word-{number}" for number in range(30)}
    raw = Payload(call).encode_args((Numbered({7: words}),), {})

    assert msgspec.json.decode(raw) == {"one": {"by_number": {"7": sorted(words)}}}
    assert Payload(call).decode_args(raw) == ((Numbered({7: words}),), {})


def test_sets_beside_results_of_nodes_are_stored_in_one_order_too() -> None:
    def call(tags: set[str], rows: list[set[str]]) -> None: ...

    words = {f"word-{number}" for number in range(30)}
    raw, _ = Payload(call).encode_with_holes((words, [msgspec.UNSET, words]), {}, type(msgspec.UNSET))

    stored = msgspec.json.decode(raw)
    assert stored == {"tags": sorted(words), "rows": [None, sorted(words)]}
