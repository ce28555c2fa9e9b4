"""Rules of a task that can not have the effect that was wanted are named."""

import pytest

from everbeat import RetryPolicy
from everbeat.config import to_policy
from everbeat.decide.sense import CODES, after_a_crash, doubts_about, problems_of
from everbeat.model.recovery import RecoveryPolicy
from everbeat.model.state import Change
from everbeat.model.task import TaskPolicy

USUAL = RecoveryPolicy()


def problems(policy: TaskPolicy, recovery: RecoveryPolicy = USUAL) -> list[str]:
    return list(problems_of(policy, recovery))


@pytest.mark.parametrize(
    "policy",
    [
        to_policy(None),
        to_policy(RetryPolicy()),
        to_policy(RetryPolicy(retry_on=[TimeoutError, "WORKER_CRASHED"])),
        to_policy(RetryPolicy(retry_on=sorted(CODES))),
        to_policy(None, on_crash="retry"),
        to_policy(RetryPolicy(), on_crash="retry"),
        to_policy(None, on_crash="pending"),
        to_policy(None, on_crash="fail"),
        to_policy(RetryPolicy(retry_on=[TimeoutError]), on_crash="pending"),
    ],
)
def test_rules_that_make_sense_are_not_complained_about(policy: TaskPolicy) -> None:
    assert problems(policy) == []


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (to_policy(RetryPolicy(retry_on=["WORKER_CRASH"])), "did you mean 'WORKER_CRASHED'?"),
        (to_policy(RetryPolicy(retry_on=["ZZZ"])), "the codes are ARGUMENTS_INVALID, LEASE_LOST"),
        (to_policy(RetryPolicy(retry_on=[])), "retry_on is empty"),
        (to_policy(RetryPolicy(max_attempts=1, retry_on=[OSError])), "retry_on has no effect: max_attempts is 1"),
        (to_policy(RetryPolicy(max_attempts=1), on_crash="retry"), "its RetryPolicy has max_attempts=1"),
        (to_policy(RetryPolicy(retry_on=[OSError]), on_crash="retry"), "does not name WORKER_CRASHED"),
        (to_policy(None, on_crash="retry", max_recovery_attempts=1), "the first crash is the last"),
        (to_policy(RetryPolicy(retry_on=["WORKER_CRASHED"]), on_crash="fail"), "contradict each other"),
    ],
)
def test_a_rule_without_effect_is_named(policy: TaskPolicy, words: str) -> None:
    (found,) = problems(policy)

    assert words in found


def test_the_settings_of_the_application_count_too() -> None:
    (found,) = problems(to_policy(None, on_crash="retry"), RecoveryPolicy(max_recovery_attempts=1))

    assert "max_recovery_attempts is 1" in found


def test_what_may_not_be_meant_is_a_doubt() -> None:
    named = to_policy(RetryPolicy(retry_on=["TASK_TIMEOUT", "WORKER_CRASHED"]))
    uncovered = to_policy(RetryPolicy(retry_on=[OSError]))

    assert list(doubts_about(named, USUAL, timeout=5)) == []
    assert list(doubts_about(named, USUAL, timeout=None)) == [
        "retry_on names TASK_TIMEOUT, and the task has no timeout"
    ]
    assert list(doubts_about(uncovered, USUAL, timeout=None)) == [
        "a crash is not retried: retry_on does not name WORKER_CRASHED"
    ]
    assert list(doubts_about(uncovered, RecoveryPolicy(action="fail"), timeout=None)) == []


def test_what_a_crash_leads_to_is_decided_by_recovery_itself() -> None:
    assert after_a_crash(to_policy(None), USUAL).change is Change.ABANDON
    assert after_a_crash(to_policy(RetryPolicy()), USUAL).change is Change.RECOVER
    assert after_a_crash(to_policy(RetryPolicy()), RecoveryPolicy(action="fail")).change is Change.ABANDON
