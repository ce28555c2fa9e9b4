"""Each rule that is taken away is missed: otherwise the simulation would prove nothing."""

import pytest
from tests.sim.mutations import MUTATIONS
from tests.sim.test_sim import simulate

SCHEDULES = 60


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_rule_that_is_taken_away_is_missed(name: str) -> None:
    status, said = simulate("--n", str(SCHEDULES), "--mutate", name)
    assert status == 1, said
    assert said.startswith("seed "), said
