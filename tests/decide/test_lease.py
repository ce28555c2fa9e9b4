"""The times of a lease fit together, or no worker starts."""

import pytest

from everbeat.decide.lease import Lease


def test_a_lease_is_beaten_for_in_sixths_and_its_tasks_stop_long_before_its_end() -> None:
    lease = Lease(30_000_000)

    assert (lease.beat_us, lease.answer_us, lease.stop_us) == (5_000_000, 3_000_000, 18_000_000)


@pytest.mark.parametrize("lease_ms", [5_000, 30_000, 3_600_000])
def test_every_lease_that_can_be_configured_can_be_kept(lease_ms: int) -> None:
    assert Lease(lease_ms * 1000).problem() is None


def test_a_lease_too_short_to_stop_a_task_in_is_refused_with_the_least_that_would_do() -> None:
    problem = Lease(3_000_000).problem()

    assert problem is not None
    assert "at least 3205 is needed" in problem
