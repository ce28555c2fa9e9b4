"""What becomes of a task whose runner has gone: the design's table, case by case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.words import a_claim, a_policy, an_orphan

from everbeat.decide.recover import recovery_for
from everbeat.model.recovery import Cause, Orphan, RecoveryPolicy, Verdict
from everbeat.model.state import Change
from everbeat.model.task import TaskPolicy

PLAIN = RecoveryPolicy()
THREE = a_policy(has_retry=True, max_attempts=3, jitter=False)
ON_CRASH_RETRY = a_policy(on_crash="retry", jitter=False)
BEGUN = [Cause.CRASHED, Cause.LOST, Cause.STOPPED, Cause.NEIGHBOUR]


def decide(orphan: Orphan, policy: RecoveryPolicy = PLAIN) -> Verdict:
    return recovery_for(orphan, policy, jitter=0.5)


# -- may it run again? ------------------------------------------------------------------------------------------------


@pytest.mark.proves("FR-017", "AC-005")
@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Cause.CRASHED, "WORKER_CRASHED"),
        (Cause.LOST, "WORKER_CRASHED"),
        (Cause.STOPPED, "WORKER_STOPPED"),
        (Cause.NEIGHBOUR, "NEIGHBOUR_CRASHED"),
    ],
)
def test_a_task_with_one_attempt_that_began_is_never_run_twice(cause: Cause, code: str) -> None:
    verdict = decide(an_orphan(cause))

    assert verdict.change is Change.ABANDON
    assert verdict.error is not None
    assert verdict.error.code == code
    assert verdict.reason == "process 7 killed by SIGSEGV; no attempts left (1/1)"
    assert not verdict.quarantined


@pytest.mark.parametrize(
    ("policy", "action", "change", "billed"),
    [
        (THREE, "retry", Change.RECOVER, True),
        (THREE, "fail", Change.ABANDON, True),
        (THREE, "pending", Change.RECOVER, False),
        (None, "retry", Change.ABANDON, True),
        (None, "fail", Change.ABANDON, True),
        (None, "pending", Change.RECOVER, False),
        (ON_CRASH_RETRY, "fail", Change.RECOVER, True),
        (a_policy(on_crash="fail", has_retry=True, max_attempts=3), "retry", Change.ABANDON, True),
        (a_policy(on_crash="pending"), "fail", Change.RECOVER, False),
        (a_policy(on_crash="retry", has_retry=True, max_attempts=1), "retry", Change.ABANDON, True),
    ],
)
@pytest.mark.parametrize("cause", [Cause.CRASHED, Cause.LOST])
def test_the_task_s_own_crash_action_comes_before_the_configured_one(
    cause: Cause, policy: str | None, action: str, change: Change, billed: bool
) -> None:
    verdict = decide(an_orphan(cause, policy=policy), RecoveryPolicy(action=action))

    assert (verdict.change, verdict.billed) == (change, billed)


@pytest.mark.parametrize(
    ("policy", "action", "change"),
    [
        (THREE, "fail", Change.ABANDON),
        (None, "pending", Change.RECOVER),
        (ON_CRASH_RETRY, "fail", Change.ABANDON),
        (a_policy(on_crash="pending"), "fail", Change.ABANDON),
        (a_policy(on_crash="pending"), "retry", Change.ABANDON),
        (a_policy(on_crash="fail", has_retry=True, max_attempts=3), "retry", Change.ABANDON),
        (a_policy(on_crash="fail"), "pending", Change.ABANDON),
    ],
)
def test_an_action_by_hand_comes_before_the_task_s_own_but_repeats_nothing_that_must_not_be(
    policy: str | None, action: str, change: Change
) -> None:
    by_hand = RecoveryPolicy(action=action, is_forced=True)

    assert decide(an_orphan(Cause.LOST, policy=policy), by_hand).change is change


@pytest.mark.parametrize(
    ("retry_on", "cause", "change"),
    [
        (("WORKER_CRASHED",), Cause.CRASHED, Change.RECOVER),
        (("WORKER_CRASHED",), Cause.LOST, Change.RECOVER),
        (("WORKER_CRASHED",), Cause.STOPPED, Change.RECOVER),
        (("WORKER_CRASHED",), Cause.NEIGHBOUR, Change.RECOVER),
        (("WORKER_STOPPED",), Cause.STOPPED, Change.RECOVER),
        (("WORKER_STOPPED",), Cause.CRASHED, Change.ABANDON),
        (("builtins.OSError",), Cause.CRASHED, Change.ABANDON),
        (("builtins.OSError",), Cause.LOST, Change.ABANDON),
        ((), Cause.CRASHED, Change.ABANDON),
        (None, Cause.CRASHED, Change.RECOVER),
    ],
)
def test_a_policy_that_lists_errors_must_list_the_crash(
    retry_on: tuple[str, ...] | None, cause: Cause, change: Change
) -> None:
    policy = a_policy(has_retry=True, max_attempts=3, retry_on=retry_on)

    assert decide(an_orphan(cause, policy=policy)).change is change


@pytest.mark.parametrize(
    ("attempt", "free", "change"),
    [
        (1, 0, Change.RECOVER),
        (2, 0, Change.RECOVER),
        (3, 0, Change.ABANDON),
        (3, 1, Change.RECOVER),
        (5, 2, Change.ABANDON),
    ],
)
def test_unbilled_runs_do_not_count_as_attempts(attempt: int, free: int, change: Change) -> None:
    orphan = an_orphan(Cause.LOST, policy=THREE, attempt=attempt, free_attempts=free)

    assert decide(orphan).change is change


@pytest.mark.parametrize("cause", [Cause.STOPPED, Cause.NEIGHBOUR])
def test_a_stop_or_a_neighbour_s_crash_in_the_last_attempt_does_not_use_it_up(cause: Cause) -> None:
    verdict = decide(an_orphan(cause, policy=THREE, attempt=3))

    assert (verdict.change, verdict.billed, verdict.crashes, verdict.losses) == (Change.RECOVER, False, 0, 0)


@pytest.mark.parametrize("policy", ["{", "[]", '"x"', '{"max_attempts": "many"}', '{"retry_on": 5}'])
@pytest.mark.parametrize("cause", BEGUN)
def test_a_task_whose_policy_can_not_be_read_is_not_run_again(cause: Cause, policy: str) -> None:
    verdict = decide(an_orphan(cause, policy=policy), RecoveryPolicy(action="pending"))

    assert verdict.change is Change.ABANDON
    assert verdict.reason is not None
    assert "can not be read" in verdict.reason


def test_a_policy_of_a_later_version_is_understood_as_far_as_it_is_known() -> None:
    assert TaskPolicy.load('{"max_attempts":4,"moon_phase":"full"}') == TaskPolicy(max_attempts=4)


# -- limits -----------------------------------------------------------------------------------------------------------


def test_three_kills_of_its_own_process_set_a_task_aside() -> None:
    verdicts = [decide(an_orphan(Cause.CRASHED, policy=ON_CRASH_RETRY, crash_count=n, attempt=n + 1)) for n in range(3)]

    assert [verdict.change for verdict in verdicts] == [Change.RECOVER, Change.RECOVER, Change.ABANDON]
    assert [verdict.crashes for verdict in verdicts] == [1, 1, 1]
    assert [verdict.quarantined for verdict in verdicts] == [False, False, True]
    assert verdicts[2].reason == "max recovery attempts exceeded (3/3): process 7 killed by SIGSEGV"


def test_ten_lost_workers_neither_fail_nor_set_aside_a_task_that_may_be_repeated() -> None:
    verdicts = [decide(an_orphan(Cause.LOST, policy=ON_CRASH_RETRY, lost_count=n, attempt=n + 1)) for n in range(11)]

    assert [verdict.change for verdict in verdicts] == [Change.RECOVER] * 10 + [Change.ABANDON]
    assert not any(verdict.quarantined or verdict.crashes for verdict in verdicts)
    assert verdicts[10].reason == "lost with its worker 11 times: process 7 killed by SIGSEGV"


def test_a_task_that_loses_its_lease_again_and_again_is_failed_in_the_end_and_never_billed() -> None:
    verdicts = [decide(an_orphan(Cause.LEASE_LOST, policy=ON_CRASH_RETRY, lost_count=n)) for n in range(11)]

    assert [verdict.change for verdict in verdicts] == [Change.RECOVER] * 10 + [Change.ABANDON]
    assert {(verdict.losses, verdict.billed, verdict.quarantined) for verdict in verdicts} == {(1, False, False)}
    assert verdicts[-1].error is not None
    assert verdicts[-1].error.code == "LEASE_LOST"


def test_losses_do_not_bring_a_task_nearer_to_the_quarantine() -> None:
    verdict = decide(an_orphan(Cause.CRASHED, policy=ON_CRASH_RETRY, lost_count=9, attempt=10))

    assert (verdict.change, verdict.quarantined) == (Change.RECOVER, False)


@pytest.mark.parametrize("action", ["retry", "pending", "fail"])
def test_the_quarantine_comes_before_every_action(action: str) -> None:
    verdict = decide(an_orphan(Cause.CRASHED, policy=THREE, crash_count=2), RecoveryPolicy(action=action))

    assert (verdict.change, verdict.quarantined) == (Change.ABANDON, True)


def test_a_task_s_own_limit_replaces_the_configured_one() -> None:
    policy = a_policy(on_crash="retry", max_recovery_attempts=5)

    assert decide(an_orphan(Cause.CRASHED, policy=policy, crash_count=3)).change is Change.RECOVER
    assert decide(an_orphan(Cause.CRASHED, policy=policy, crash_count=4)).quarantined


def test_a_payload_that_kills_its_process_before_it_begins_is_stopped_by_its_own_count() -> None:
    verdicts = [decide(an_orphan(Cause.DISPATCH_DIED, dispatch_count=n)) for n in range(3)]

    assert [verdict.change for verdict in verdicts] == [Change.RECOVER, Change.RECOVER, Change.ABANDON]
    assert [(v.billed, v.crashes, v.losses, v.dispatches) for v in verdicts] == [(False, 0, 0, 1)] * 3
    assert not verdicts[2].quarantined


# -- how it runs again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("crash_count", "delay_us"), [(0, 0), (1, 1_000_000), (2, 2_000_000), (3, 4_000_000), (11, 1024_000_000)]
)
def test_the_first_recovery_comes_at_once_and_backoff_starts_with_the_second(crash_count: int, delay_us: int) -> None:
    policy = a_policy(on_crash="retry", max_recovery_attempts=100, jitter=False)

    assert decide(an_orphan(Cause.CRASHED, policy=policy, crash_count=crash_count)).delay_us == delay_us


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.STOPPED, Cause.NEIGHBOUR, Cause.NEVER_BEGAN])
def test_what_is_not_the_task_s_doing_never_delays_it(cause: Cause) -> None:
    assert decide(an_orphan(cause, policy=THREE, crash_count=1, lost_count=5, dispatch_count=1)).delay_us == 0


@pytest.mark.parametrize(
    ("cause", "facts", "solo"),
    [
        (Cause.CRASHED, {}, True),
        (Cause.NEIGHBOUR, {}, True),
        (Cause.DISPATCH_DIED, {}, True),
        (Cause.LOST, {}, False),
        (Cause.LOST, {"lost_count": 1}, True),
        (Cause.STOPPED, {}, False),
        (Cause.STOPPED, {"solo": True}, True),
        (Cause.NEVER_BEGAN, {}, False),
        (Cause.NEVER_BEGAN, {"solo": True}, True),
    ],
)
def test_a_suspect_runs_alone_from_then_on(cause: Cause, facts: dict[str, object], solo: bool) -> None:
    assert decide(an_orphan(cause, policy=THREE, **facts)).solo is solo


@pytest.mark.parametrize("policy", [None, THREE, ON_CRASH_RETRY, a_policy(on_crash="fail"), "{broken"])
@pytest.mark.parametrize("action", ["retry", "fail", "pending"])
def test_a_task_that_never_began_always_goes_back_unbilled(policy: str | None, action: str) -> None:
    orphan = an_orphan(Cause.NEVER_BEGAN, policy=policy, attempt=9, crash_count=9, lost_count=99)

    verdict = decide(orphan, RecoveryPolicy(action=action))

    assert (verdict.change, verdict.billed, verdict.error) == (Change.RECOVER, False, None)
    assert (verdict.crashes, verdict.losses, verdict.dispatches) == (0, 0, 0)


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.NEVER_BEGAN])
def test_every_verdict_on_a_run_says_why_and_with_which_code(cause: Cause) -> None:
    for policy in (None, THREE, ON_CRASH_RETRY):
        verdict = decide(an_orphan(cause, policy=policy))

        assert verdict.reason is not None
        assert "process 7 killed by SIGSEGV" in verdict.reason
        assert verdict.error is not None


# -- whole lives ------------------------------------------------------------------------------------------------------

policies = st.builds(
    TaskPolicy,
    max_attempts=st.integers(1, 6),
    has_retry=st.booleans(),
    on_crash=st.sampled_from([None, "retry", "fail", "pending"]),
    max_recovery_attempts=st.none() | st.integers(1, 5),
)


@pytest.mark.proves("FR-016", "AC-004")
@given(
    policies,
    st.sampled_from(["retry", "fail", "pending"]),
    st.lists(st.sampled_from(list(Cause)), min_size=60, max_size=60),
)
def test_no_life_exceeds_its_budgets(policy: TaskPolicy, action: str, causes: list[Cause]) -> None:
    recovery, claim = RecoveryPolicy(action=action), a_claim(policy=policy.dump(), attempt=0)
    limit = policy.max_recovery_attempts or recovery.max_recovery_attempts
    for cause in causes:
        claim.attempt += 1
        verdict = decide(Orphan(claim=claim, cause=cause, evidence="gone"), recovery)
        claim.free_attempts += not verdict.billed
        claim.crash_count += verdict.crashes
        claim.lost_count += verdict.losses
        claim.dispatch_count += verdict.dispatches
        assert claim.crash_count <= limit
        assert claim.dispatch_count <= limit
        assert claim.lost_count <= recovery.max_losses + 1
        assert verdict.crashes + verdict.losses + verdict.dispatches <= 1
        if policy.on_crash != "retry" or policy.has_retry:
            assert claim.attempt - claim.free_attempts <= policy.max_attempts
        if verdict.change is Change.ABANDON:
            return
        assert verdict.change is Change.RECOVER
