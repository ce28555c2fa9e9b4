"""Schedules of faults on workers under virtual time: none may break a promise (tests/sim/model.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.postgres import GIVEN, EmptyDatabase
from tests.sim.plan import WITH_ASYNC, WITH_GRAPHS
from tests.sim.runner import kind_of

EACH = 50
EACH_ON_POSTGRES = 17
ROOT = Path(__file__).parents[2]


def simulate(*words: str, **environment: str) -> tuple[int, str]:
    """In a process of its own, where sets have an order that is always the same."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--jobs", "1", *words], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONHASHSEED": "0"} | environment, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "first", [first + part for first in (1, WITH_ASYNC, WITH_GRAPHS) for part in range(0, 700, EACH)]
)
def test_no_schedule_breaks_a_promise(first: int) -> None:
    status, said = simulate("--n", str(EACH), "--seed", str(first))
    assert status == 0, said


@pytest.mark.parametrize(
    "first",
    [
        first + part
        for first in (10_001, 10_001 + WITH_ASYNC, 10_001 + WITH_GRAPHS)
        for part in range(0, 4 * EACH_ON_POSTGRES, EACH_ON_POSTGRES)
    ],
)
def test_nor_does_one_on_postgresql(first: int, a_database: EmptyDatabase) -> None:
    words = ("--n", str(EACH_ON_POSTGRES), "--seed", str(first), "--store", "postgres")
    status, said = simulate(*words, **{GIVEN: a_database.server})
    assert status == 0, said


def test_a_failure_is_made_short_as_long_as_it_is_the_same() -> None:
    stuck = kind_of("t01 is stuck: RUNNING of w1, due None, waiting for None")

    assert stuck == kind_of("f0:b is stuck: PENDING of w12, due 1800000140794462, waiting for None")
    assert stuck != kind_of("t01 ran 1 times, was lost 0 times and has used 2 attempts")


def test_tasks_of_one_key_that_run_in_a_long_row_are_not_called_stuck() -> None:
    status, said = simulate("--n", "1", "--seed", "102306")

    assert status == 0, said


def test_a_task_that_a_person_takes_from_a_worker_that_is_gone_has_used_an_attempt() -> None:
    """Nobody had missed the worker yet, and nobody knew that no process had seen the task."""
    status, said = simulate("--n", "1", "--seed", "402966")

    assert status == 0, said


def test_what_a_person_accepts_was_refused_before_and_a_sender_in_doubt_may_have_found_another_of_its_key() -> None:
    for seed in ("517525", "505746"):
        status, said = simulate("--n", "1", "--seed", seed)

        assert status == 0, said


def test_what_a_stopped_worker_left_in_its_spool_is_waited_for() -> None:
    status, said = simulate("--n", "1", "--seed", "937")

    assert status == 0, said


def test_a_life_that_ends_deep_inside_of_what_happens_already_ends() -> None:
    """No time passes there, so it can not wait for its processes."""
    status, said = simulate("--n", "1", "--seed", "970")

    assert status == 0, said


def test_what_never_began_is_known_while_somebody_else_sees_to_what_its_worker_left() -> None:
    status, said = simulate("--n", "1", "--seed", "542092")

    assert status == 0, said


def test_of_two_reasons_why_a_join_can_not_be_met_it_does_not_matter_which_came_first() -> None:
    """An input was not wanted, and another one failed later: the join was SKIPPED, and FAILED the other way round."""
    status, said = simulate("--n", "1", "--seed", "2000133")

    assert status == 0, said


def test_what_is_said_again_of_a_task_that_was_deleted_meanwhile_is_refused() -> None:
    """A worker was stopped with a result that another one had stored for it, for longer than ended tasks were kept."""
    status, said = simulate("--n", "1", "--seed", "2000597")

    assert status == 0, said


def test_a_task_that_a_person_takes_from_a_worker_that_had_not_begun_it_has_used_an_attempt() -> None:
    """The answer to its claim was lost, and it was failed before its worker had asked what is its own."""
    status, said = simulate("--n", "1", "--seed", "762943")

    assert status == 0, said


def test_one_outcome_may_be_kept_again_after_its_task_was_deleted() -> None:
    status, said = simulate("--n", "1", "--seed", "2010845")

    assert status == 0, said
