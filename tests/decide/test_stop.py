"""When a run is told to stop, when its process is drained, and when it is killed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.words import (
    a_claim,
    a_policy,
    abandoned,
    an_error,
    an_orphan,
    completed,
    failed,
    handed_back,
    raised,
    retried,
)

from everbeat.decide.finish import finish_for
from everbeat.decide.recover import recovery_for
from everbeat.decide.stop import DRAIN_US, TIMEOUT_GRACE_US, Step, instead_of_another_run, next_step, over_at
from everbeat.model.recovery import Cause, RecoveryPolicy
from everbeat.model.state import Change

NOW = 100_000_000


@pytest.mark.parametrize(
    ("begun_at", "expected"),
    [(None, NOW + 30), (NOW, NOW + 30), (NOW - 20, NOW + 10), (NOW - 40, NOW - 10)],
)
def test_a_timeout_counts_from_the_begin_mark_and_not_before(begun_at: int | None, expected: int) -> None:
    assert over_at(30, begun_at, NOW) == expected


@pytest.mark.parametrize(
    ("over_at", "kill_at", "drain_until", "has_neighbours", "expected"),
    [
        (NOW + 1, None, None, False, (Step.WAIT, NOW + 1)),
        (NOW, None, None, False, (Step.TELL, NOW + TIMEOUT_GRACE_US)),
        (NOW - 5, None, None, True, (Step.TELL, NOW + TIMEOUT_GRACE_US)),
        (NOW - 5, NOW + 1, None, False, (Step.WAIT, NOW + 1)),
        (NOW - 5, NOW, None, False, (Step.KILL, NOW)),
        (NOW - 5, NOW, None, True, (Step.DRAIN, NOW + DRAIN_US)),
        (NOW - 5, NOW - 1, NOW + 1, True, (Step.WAIT, NOW + 1)),
        (NOW - 5, NOW - 1, NOW + 1, False, (Step.KILL, NOW)),
        (NOW - 5, NOW - 1, NOW, True, (Step.KILL, NOW)),
    ],
)
def test_a_run_is_told_and_then_killed_and_its_neighbours_have_time_to_end(
    over_at: int, kill_at: int | None, drain_until: int | None, has_neighbours: bool, expected: tuple[Step, int]
) -> None:
    step = next_step(NOW, over_at=over_at, kill_at=kill_at, drain_until=drain_until, has_neighbours=has_neighbours)

    assert step == expected


@given(st.integers(0, 10_000_000), st.booleans(), st.integers(1, 3_000_000))
def test_whatever_runs_too_long_is_killed_in_the_end_and_nobody_looks_too_often(
    timeout_us: int, has_neighbours: bool, late_us: int
) -> None:
    """Each look may come late. It is told at least its grace before it is killed."""
    now, kill_at, drain_until, looks = 0, None, None, []
    while not looks or looks[-1][0] is not Step.KILL:
        step, at = next_step(
            now, over_at=timeout_us, kill_at=kill_at, drain_until=drain_until, has_neighbours=has_neighbours
        )
        looks.append((step, now))
        kill_at = at if step is Step.TELL else kill_at
        drain_until = at if step is Step.DRAIN else drain_until
        now = at + late_us

    told = next(at for step, at in looks if step is Step.TELL)
    killed = looks[-1][1]
    assert len(looks) <= 4
    assert told >= timeout_us
    assert killed - told >= TIMEOUT_GRACE_US + (DRAIN_US if has_neighbours else 0)


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("policy", [None, a_policy(has_retry=True, max_attempts=5), a_policy(on_crash="pending")])
def test_an_orphan_whose_end_was_asked_for_is_cancelled_whatever_it_died_of(cause: Cause, policy: str | None) -> None:
    orphan = an_orphan(cause, policy=policy, cancel_requested=True)

    verdict = recovery_for(orphan, RecoveryPolicy(), jitter=0.5)

    assert (verdict.change, verdict.action, verdict.quarantined) == (Change.CANCEL, "cancelled", False)
    assert verdict.reason is not None
    assert verdict.reason.startswith("its cancellation was asked for; process 7 killed by SIGSEGV")


@pytest.mark.parametrize(
    ("verdict", "change"),
    [
        (completed(), Change.COMPLETE),
        (failed(), Change.FAIL),
        (retried(delay_us=5), Change.CANCEL),
        (handed_back(), Change.CANCEL),
        (abandoned(), Change.CANCEL),
    ],
    ids=lambda value: str(getattr(value, "change", "")),
)
def test_only_the_end_of_its_code_counts_more_than_a_cancel(verdict: object, change: Change) -> None:
    made = instead_of_another_run(verdict)  # type: ignore[arg-type]

    assert (made.change, made.delay_us) == (change, 0)


def test_a_run_that_stopped_when_it_was_told_to_is_cancelled_and_not_retried() -> None:
    claim = a_claim(policy=a_policy(has_retry=True, max_attempts=5))

    verdict = finish_for(claim, raised(an_error("TASK_CANCELLED")), jitter=0.5)

    assert verdict.change is Change.CANCEL
