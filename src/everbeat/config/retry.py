"""How often a task is tried and how long it waits in between."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from everbeat.config import checks
from everbeat.config.checks import Seconds
from everbeat.ids import full_name
from everbeat.model.task import CrashAction, TaskPolicy

DAY = 86_400
RetryCause = str | type[BaseException]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a task is run, how long it waits in between, and after what. ConfigError says what can not be."""

    max_attempts: int = 3
    """Runs in all, the first included."""
    backoff: Literal["exponential", "fixed"] = "exponential"
    base_seconds: Seconds = 1
    """The wait after the first failure; exponential backoff doubles it each time."""
    max_seconds: Seconds = 3600
    """The longest wait. Never taken as shorter than `base_seconds`."""
    jitter: bool = True
    retry_on: Collection[RetryCause] | None = None
    """Error codes and exception classes; None means any exception and crashes too. When given, a crash is retried only
    if "WORKER_CRASHED" is in it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_seconds", checks.in_seconds(self.base_seconds))
        object.__setattr__(self, "max_seconds", checks.in_seconds(self.max_seconds))
        if isinstance(self.retry_on, Iterable) and not isinstance(self.retry_on, str | type):
            object.__setattr__(self, "retry_on", tuple(self.retry_on))
        checks.raise_for(
            (
                checks.whole("max_attempts", self.max_attempts, 1, 1_000),
                checks.one_of("backoff", self.backoff, ("exponential", "fixed")),
                checks.number("base_seconds", self.base_seconds, 0, DAY, unit=" s"),
                checks.number("max_seconds", self.max_seconds, 0, 31 * DAY, unit=" s"),
                checks.flag("jitter", self.jitter),
                *_cause_problems(self.retry_on),
            ),
            subject="RetryPolicy",
        )


def to_policy(
    retry: RetryPolicy | None,
    *,
    on_crash: CrashAction | None = None,
    max_recovery_attempts: int | None = None,
    timeout: float | None = None,
    isolated: bool = False,
    sensitive: bool = False,
) -> TaskPolicy:
    """As stored with each task: whoever recovers it has neither the application nor its exception classes."""
    wishes = TaskPolicy(
        on_crash=on_crash, max_recovery_attempts=max_recovery_attempts, timeout=timeout, isolated=isolated,
        sensitive=sensitive,
    )  # fmt: skip
    if retry is None:
        return wishes
    base, longest = checks.to_seconds(retry.base_seconds), checks.to_seconds(retry.max_seconds)
    return replace(
        wishes,
        max_attempts=retry.max_attempts,
        backoff=retry.backoff,
        base_seconds=base,
        max_seconds=max(base, longest),
        jitter=retry.jitter,
        retry_on=None if retry.retry_on is None else tuple(map(_cause_name, retry.retry_on)),
        has_retry=True,
    )


def _cause_name(cause: RetryCause) -> str:
    return cause if isinstance(cause, str) else full_name(cause)


def _cause_problems(causes: Collection[RetryCause] | None) -> Iterable[str]:
    if causes is None:
        return
    if not isinstance(causes, tuple):
        yield f"retry_on must be a list of error codes and exception classes: [{_shown(causes)}], not {_shown(causes)}"
        return
    for cause in causes:
        is_class = isinstance(cause, type) and issubclass(cause, BaseException)
        is_code = isinstance(cause, str) and cause.replace("_", "").replace(".", "").isalnum()
        if not is_class and not is_code:
            yield f"retry_on takes error codes and exception classes, not {cause!r}"


def _shown(cause: object) -> str:
    return cause.__name__ if isinstance(cause, type) else repr(cause)
