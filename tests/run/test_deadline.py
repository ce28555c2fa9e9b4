"""Until when tasks with an exclusive key may run: counted from the sending of the last beat that was answered."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from everbeat.decide.lease import Lease
from everbeat.run.deadline import Deadline, HeldLease

SECOND = 1_000_000


@pytest.fixture
def deadline() -> Iterator[Deadline]:
    with closing(Deadline.create()) as deadline:
        yield deadline


def test_it_counts_from_the_sending_of_what_was_answered_and_not_from_the_answer(deadline: Deadline) -> None:
    lease = HeldLease(Lease(10 * SECOND), deadline, now_us=lambda: 105 * SECOND)

    lease.answered(102 * SECOND)

    assert deadline.at_us == 108 * SECOND
    assert lease.left_us() == 3 * SECOND


def test_an_answer_that_was_overtaken_by_a_later_one_moves_nothing_back(deadline: Deadline) -> None:
    lease = HeldLease(Lease(10 * SECOND), deadline, now_us=lambda: 105 * SECOND)
    lease.answered(104 * SECOND)

    lease.answered(101 * SECOND)

    assert deadline.at_us == 110 * SECOND
