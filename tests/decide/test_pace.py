"""How many tasks of a name may wait in one slot's queue."""

import pytest

from everbeat.decide.pace import DEEPEST, FRAME_US, Pace


def test_a_name_that_was_never_seen_is_given_out_one_at_a_time() -> None:
    assert Pace().depths.get("add", 1) == 1


def test_a_frame_holds_about_five_milliseconds_of_work() -> None:
    pace = Pace()

    pace.saw("quick", 4)
    pace.saw("middling", 500)
    pace.saw("slow", 2 * FRAME_US)

    assert pace.depths == {"quick": DEEPEST, "middling": 10, "slow": 1}


def test_the_mean_of_several_runs_counts_as_much_as_each_of_them_would() -> None:
    one_by_one, together = Pace(), Pace()
    for pace in (one_by_one, together):
        pace.saw("add", 100)

    for _ in range(5):
        one_by_one.saw("add", 1_000)
    together.saw("add", 1_000, 5)

    assert together.mean_us["add"] == pytest.approx(one_by_one.mean_us["add"])


def test_a_clock_that_steps_back_makes_no_task_quicker_than_nothing() -> None:
    pace = Pace()

    pace.saw("add", -5_000_000)

    assert pace.mean_us["add"] == 0
