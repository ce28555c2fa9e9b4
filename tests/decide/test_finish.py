"""What becomes of a task whose code has ended by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.words import a_claim, a_policy, an_error, raised, succeeded

from everbeat.decide.backoff import backoff_us
from everbeat.decide.finish import finish_for, is_retryable
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.model.task import TaskPolicy

THREE = a_policy(has_retry=True, max_attempts=3, jitter=False)


def test_a_result_completes_the_task_whatever_happened_before() -> None:
    claim = a_claim(policy="{broken", attempt=9, crash_count=2)

    assert finish_for(claim, succeeded(b"5"), jitter=0.5) == Verdict(change=Change.COMPLETE, result=b"5")


def test_an_exception_fails_a_task_without_a_retry_policy() -> None:
    verdict = finish_for(a_claim(), raised(), jitter=0.5)

    assert (verdict.change, verdict.reason) == (Change.FAIL, "UNHANDLED_EXCEPTION: no attempts left (1/1)")


def test_on_crash_retry_is_not_for_exceptions() -> None:
    assert finish_for(a_claim(policy=a_policy(on_crash="retry")), raised(), jitter=0.5).change is Change.FAIL


@pytest.mark.parametrize(
    ("attempt", "free", "change", "delay_us"),
    [
        (1, 0, Change.RETRY, 1_000_000),
        (2, 0, Change.RETRY, 2_000_000),
        (3, 0, Change.FAIL, 0),
        (3, 2, Change.RETRY, 1_000_000),
        (6, 3, Change.FAIL, 0),
    ],
)
def test_exceptions_wait_by_the_policy_from_the_first(attempt: int, free: int, change: Change, delay_us: int) -> None:
    verdict = finish_for(a_claim(policy=THREE, attempt=attempt, free_attempts=free), raised(), jitter=0.5)

    assert (verdict.change, verdict.delay_us, verdict.billed) == (change, delay_us, True)


@pytest.mark.parametrize(
    ("retry_on", "code", "lineage", "retried"),
    [
        (None, "UNHANDLED_EXCEPTION", (), True),
        (None, "TASK_TIMEOUT", (), True),
        (None, "ARGUMENTS_INVALID", (), False),
        (None, "RESULT_INVALID", (), False),
        (None, "RESULT_TOO_LARGE", (), False),
        (None, "UNKNOWN_TASK", (), False),
        (("RESULT_INVALID",), "RESULT_INVALID", (), True),
        (("TASK_TIMEOUT",), "UNHANDLED_EXCEPTION", ("builtins.OSError",), False),
        (("builtins.OSError",), "UNHANDLED_EXCEPTION", ("shop.Down", "builtins.OSError"), True),
        ((), "UNHANDLED_EXCEPTION", ("builtins.OSError",), False),
    ],
)
def test_retry_on_takes_codes_and_classes_with_their_bases(
    retry_on: tuple[str, ...] | None, code: str, lineage: tuple[str, ...], retried: bool
) -> None:
    assert is_retryable(an_error(code, *lineage), TaskPolicy(max_attempts=3, retry_on=retry_on)) is retried


def test_an_error_outside_the_policy_is_not_called_a_lack_of_attempts() -> None:
    policy = a_policy(has_retry=True, max_attempts=3, retry_on=("TASK_TIMEOUT",))

    verdict = finish_for(a_claim(policy=policy), raised(), jitter=0.5)

    assert verdict.reason == "UNHANDLED_EXCEPTION: its retry policy does not cover this error"


@pytest.mark.parametrize(
    ("policy", "failures", "jitter", "expected"),
    [
        (TaskPolicy(backoff="fixed", base_seconds=2, jitter=False), 7, 0.5, 2_000_000),
        (TaskPolicy(base_seconds=1, jitter=False), 4, 0.5, 8_000_000),
        (TaskPolicy(base_seconds=1, jitter=False), 0, 0.5, 1_000_000),
        (TaskPolicy(base_seconds=1, max_seconds=60, jitter=False), 900, 0.5, 60_000_000),
        (TaskPolicy(base_seconds=0), 3, 0.9, 0),
        (TaskPolicy(base_seconds=4), 1, 0.0, 3_000_000),
        (TaskPolicy(base_seconds=4), 1, 0.5, 4_000_000),
        (TaskPolicy(base_seconds=1, max_seconds=100), 20, 0.0, 75_000_000),
        (TaskPolicy(base_seconds=1, max_seconds=100), 20, 0.5, 87_500_000),
        (TaskPolicy(base_seconds=1, max_seconds=100), 900, 0.5, 87_500_000),
    ],
)
def test_backoff_doubles_up_to_its_limit(policy: TaskPolicy, failures: int, jitter: float, expected: int) -> None:
    assert backoff_us(policy, failures, jitter) == expected


@given(
    st.floats(0, 86_400), st.floats(0, 86_400), st.integers(0, 1_000), st.floats(0, 1, exclude_max=True), st.booleans()
)
def test_backoff_is_never_negative_nor_longer_than_its_limit(
    base: float, longest: float, failures: int, jitter: float, has_jitter: bool
) -> None:
    policy = TaskPolicy(base_seconds=base, max_seconds=longest, jitter=has_jitter)

    assert 0 <= backoff_us(policy, failures, jitter) <= round(longest * 1_000_000)
