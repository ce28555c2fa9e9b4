"""Each rule that is taken away is missed: otherwise the tests would prove nothing about it."""

import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mutation.catalogue import MUTATIONS
from tests.mutation.table import PAGE, written
from tests.mutation.trying import attempt, judged
from tests.mutation.weakening import Mutation, put
from tests.sim.plan import Plan
from tests.sim.runner import a_place

from everbeat.decide import recover

ROOT = Path(__file__).parents[2]
PARTS = 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_rule_that_is_taken_away_is_missed(part: int) -> None:
    names = list(MUTATIONS)[part::PARTS]
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", "--jobs", "2", *names], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONHASHSEED": "0"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_guarantees_say_by_what_each_is_missed() -> None:
    assert PAGE.read_text() == written(), "run: python -m tests.mutation --table"


def test_every_mutation_is_noticed_by_a_schedule_or_a_test() -> None:
    assert [name for name, one in MUTATIONS.items() if (one.seed is None) == (one.test is None)] == []


def test_no_rule_of_the_protocol_is_left_out() -> None:
    assert {int(one.rule) for one in MUTATIONS.values()} == set(range(1, 43))


def test_a_schedule_that_breaks_a_promise_is_made_short_and_breaks_it_again() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", "--jobs", "1", "fence_not_raised_when_revoked", "--shorten", "20"],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": "0"}, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    command = next(line for line in said if line.startswith("see it again: make sim N=1 SEED=1 KEEP="))
    kept = command.partition("KEEP=")[2].split(",")
    broken = said[said.index("broken:") + 1 : said.index(command)]
    again = said[said.index("again:") + 1 :]
    assert len(kept) < len(Plan.of(1).steps) / 2
    assert said.index("trace (virtual seconds):") - said.index("steps:") - 1 == len(kept)
    assert again == broken


# -- what counts as noticed -------------------------------------------------------------------------------------------


def _one_that_can_not_run() -> None:
    """A mutation with a fault of its own."""
    put(recover, "_verdict_on", lambda orphan, recovery, jitter: replace((), change=None))


A_MUTATION = Mutation(weaken=_one_that_can_not_run, rule="5", seed=1, test=None, in_vain=False, words=None)


def test_a_schedule_that_ends_with_an_error_of_the_weak_code_has_noticed_nothing() -> None:
    with a_place("sqlite") as place, multiprocessing.get_context("fork").Pool(1) as pool:
        _, seed, said = pool.apply(attempt, [(A_MUTATION, place, [1, 2])])

    assert seed is None
    assert "the weak code itself fails: TypeError" in said


@pytest.mark.parametrize(
    ("said", "is_noticed"),
    [
        ("FAILED tests/a.py::test_b[x-1 2] - assert 1 == 2", True),
        ("FAILED tests/a.py::test_b - AssertionError: assert [] == ['task-2']", True),
        ("FAILED tests/a.py::test_b - Failed: DID NOT RAISE <class 'Refused'>", True),
        ("FAILED tests/a.py::test_b - KeyError: 'few'", False),
        ("E       TypeError: replace() should be called on ...\nFAILED tests/a.py::test_b - assert 1 == 2", False),
        ("NameError: name 'x' is not defined\nFAILED tests/a.py::test_b - AssertionError: no worker is ready", False),
        ("FAILED tests/a.py::test_b - Failed: Timeout >5.0s", False),
        ("ERROR tests/a.py::test_b - assert 1 == 2", False),
    ],
)
def test_only_an_assertion_that_fails_notices(said: str, is_noticed: bool) -> None:
    assert (judged(A_MUTATION, pytest.ExitCode.TESTS_FAILED, said)[0] is not None) == is_noticed


def test_another_failure_notices_where_it_is_the_one_that_was_named() -> None:
    said = "E   OperationalError: near x\nFAILED tests/a.py::test_b - OperationalError: near x"

    assert judged(replace(A_MUTATION, words="near x"), pytest.ExitCode.TESTS_FAILED, said)[0] == 0
    assert judged(replace(A_MUTATION, words="near y"), pytest.ExitCode.TESTS_FAILED, said)[0] is None
    waited = "FAILED tests/a.py::test_b - Failed: Timeout >5.0s"
    assert judged(replace(A_MUTATION, in_vain=True), pytest.ExitCode.TESTS_FAILED, waited)[0] == 0
