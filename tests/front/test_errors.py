"""Every error is also the built-in one expects, keeps its facts, and survives pickling."""

import pickle

import pytest

import everbeat
from everbeat.errors import (
    ConfigError,
    EverbeatError,
    PayloadError,
    RecoveryFailed,
    ResultTimeout,
    ResultTooLarge,
    SchemaMismatch,
    StoreDamaged,
    StoreUnavailable,
    TaskCancelled,
    TaskCancelRequested,
    TaskConflict,
    TaskExpired,
    TaskFailed,
    TaskInterrupted,
    TaskNotFound,
    TaskTimeout,
)

FAILED = TaskFailed(
    task_id="t1",
    error_code="UNHANDLED_EXCEPTION",
    message="boom",
    exception_type="builtins.ValueError",
    traceback="Traceback ...",
    attempt=3,
)
EXAMPLES = [
    ConfigError(["first", "second"], subject="AppConfig"),
    PayloadError("argument 'a'"),
    ResultTooLarge("17 MiB"),
    StoreUnavailable("away", task_ids=["t1"], maybe_stored=True),
    StoreDamaged("malformed"),
    RecoveryFailed("halted", errors=["page 7"], recovery_point="noon", backup_command="everbeat db backup x"),
    SchemaMismatch("other version"),
    TaskNotFound("t1", where="sqlite:////tmp/x.db"),
    TaskConflict("t1"),
    TaskConflict("t1", stored_ids=["t0"]),
    FAILED,
    TaskCancelled("t1"),
    TaskExpired("t1"),
    ResultTimeout("t1", 5.0),
]


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ConfigError, ValueError),
        (PayloadError, TypeError),
        (ResultTooLarge, PayloadError),
        (StoreUnavailable, ConnectionError),
        (TaskNotFound, LookupError),
        (ResultTimeout, TimeoutError),
    ],
)
def test_an_error_is_the_builtin_one_expects(error: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)
    assert issubclass(error, EverbeatError)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_facts(error: EverbeatError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("error", [TaskInterrupted, TaskTimeout, TaskCancelRequested])
def test_what_stops_a_task_can_not_be_caught_as_an_exception(error: type[BaseException]) -> None:
    assert issubclass(error, TaskInterrupted)
    assert not issubclass(error, Exception)


def test_a_config_error_lists_every_problem() -> None:
    assert str(EXAMPLES[0]) == "AppConfig: 2 problems\n  - first\n  - second"


def test_a_failed_task_says_which_how_and_in_which_attempt() -> None:
    assert str(FAILED) == "task t1 failed in attempt 3 with UNHANDLED_EXCEPTION: builtins.ValueError: boom"


def test_an_outage_while_sending_says_what_is_known_of_the_task() -> None:
    definite = StoreUnavailable("disk full.").while_sending(["t1"])
    doubtful = StoreUnavailable("connection lost", maybe_stored=True).while_sending(["t1"])

    assert str(definite) == "disk full. Task t1 was not stored and may be sent again."
    assert str(doubtful).startswith("connection lost. Task t1 may have been stored;")
    assert (doubtful.task_id, doubtful.task_ids, doubtful.maybe_stored) == ("t1", ("t1",), True)


def test_every_error_is_exported() -> None:
    assert {type(error).__name__ for error in EXAMPLES} <= set(everbeat.__all__)
