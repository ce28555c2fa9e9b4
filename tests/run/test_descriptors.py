"""As many open files as the processes of a worker need, or a clear word before the first of them is started."""

import resource
from collections.abc import Iterator

import pytest

from everbeat.run.descriptors import make_room
from everbeat.run.unusable import LimitUnusable


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_limit_that_is_high_enough_is_left_alone(limits: tuple[int, int]) -> None:
    make_room(2, 7)

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_one_that_is_too_low_is_raised_to_what_is_needed(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))

    make_room(8, 19)

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (64 + 6 * 19, limits[1])


def test_more_than_can_be_had_is_refused_with_what_to_do(limits: tuple[int, int]) -> None:
    too_many = limits[1] // 6

    with pytest.raises(
        LimitUnusable, match=r"may need [\d,]+ open files, and no more than [\d,]+ can be had here: raise"
    ):
        make_room(too_many // 2, too_many)

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
