"""Each rule that is taken away is missed: otherwise the tests would prove nothing about it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutation.catalogue import MUTATIONS
from tests.mutation.table import PAGE, written

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
