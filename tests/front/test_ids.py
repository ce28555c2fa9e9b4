"""Ids sort by time and never repeat; names are checked by one rule."""

import itertools
import sys
import threading
import uuid
from collections.abc import Callable

import pytest

from everbeat.ids import Ids, full_name, key_problem, module_name, name_problem, new_id


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    made = uuid.UUID(Ids(now_ms=lambda: 0x0192_0000_0001)())

    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == 0x0192_0000_0001


def test_ids_of_one_millisecond_grow() -> None:
    ids = Ids(now_ms=lambda: 1_700_000_000_000)

    made = [ids() for _ in range(1000)]

    assert made == sorted(set(made))


def test_many_ids_at_once_grow_too_and_are_uuids() -> None:
    ids = Ids()

    made = [*ids.many(3000), ids(), *ids.many(0), *ids.many(1)]

    assert made == sorted(set(made))
    assert len(made) == 3002
    assert {(uuid.UUID(one).version, str(uuid.UUID(one)) == one) for one in made} == {(7, True)}


def test_ids_that_would_not_fit_into_the_lower_half_begin_with_the_next_upper_half() -> None:
    ids = Ids(now_ms=lambda: 1, random_bytes=lambda size: b"\xff" * size)

    first, second = ids.many(2)

    assert first == "00000000-0002-7000-8000-000000000000"
    assert second == "00000000-0002-7000-8000-000100000000"
    assert ids() == "00000000-0002-7000-8000-000200000000"


def test_every_digit_of_many_ids_is_in_its_place() -> None:
    ids = Ids(now_ms=lambda: 0x0192_ABCD_EF01, random_bytes=lambda size: bytes(range(256)) * 16)

    first, second = ids.many(2)

    assert first == "0192abcd-ef01-7004-8203-040506070809"
    assert uuid.UUID(second).int - uuid.UUID(first).int == 1 + int.from_bytes(b"\x0e\x0f\x10\x11", sys.byteorder)


def test_ids_grow_when_the_clock_steps_back() -> None:
    times = iter([2000, 1000, 1001, 2001])
    ids = Ids(now_ms=lambda: next(times))

    made = [ids() for _ in range(4)]

    assert made == sorted(made)


def test_time_and_randomness_can_be_given() -> None:
    def source() -> Ids:
        return Ids(now_ms=lambda: 5, random_bytes=bytes)

    assert [source()() for _ in range(2)] == ["00000000-0005-7000-8000-000000000000"] * 2


def test_no_random_byte_is_used_twice() -> None:
    given = itertools.count()
    ids = Ids(now_ms=lambda: 5, random_bytes=lambda size: bytes(next(given) % 251 for _ in range(size)))

    steps = {uuid.UUID(ids()).int & 0xFFFF_FFFF for _ in range(500)}
    ids.start_afresh()

    assert len(steps) == 500
    assert uuid.UUID(ids()).int & 0xFFFF_FFFF not in steps


def test_threads_never_get_the_same_id() -> None:
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.extend(new_id() for _ in range(2000)))  # type: ignore[misc]
        for mine in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({one for mine in made for one in mine}) == 8000
    assert all(mine == sorted(mine) for mine in made)


@pytest.mark.parametrize("name", ["mail", "a.b:c@d/e-f_1", "x" * 128])
def test_a_name_of_the_allowed_characters_is_fine(name: str) -> None:
    assert name_problem(name, "queue") is None


@pytest.mark.parametrize("name", ["", "x" * 129, "two words", "naïve", "new\nline", "tail\n", None, 5])
def test_any_other_name_is_explained(name: object) -> None:
    assert str(name_problem(name, "queue")).startswith("queue ")


@pytest.mark.parametrize("problem", [name_problem, key_problem])
def test_a_page_in_the_place_of_a_name_is_not_repeated_whole(problem: Callable[[object, str], str | None]) -> None:
    said = str(problem("page " * 20_000, "key"))

    assert said.startswith("key 'page page ")
    assert "(100002 characters) is not valid" in said
    assert len(said) < 400


def test_a_class_is_named_by_its_module() -> None:
    assert full_name(ValueError) == "builtins.ValueError"
    assert module_name("shop.tasks") == "shop.tasks"
