"""When a silent task counts as stale, what becomes of it, and for how long the traces are kept."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from everbeat.config import checks
from everbeat.model.recovery import RecoveryPolicy
from everbeat.model.task import CrashAction

ACTIONS: tuple[CrashAction, ...] = ("retry", "fail", "pending")
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
TEN_YEARS_HOURS = 87_600


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    auto_requeue_stale_claimed: bool = True
    """Return stale CLAIMED tasks to the queue; their code never ran. False: leave them and list them."""
    claimed_stale_threshold_ms: int = 120_000
    auto_fail_stale_running: bool = True
    """Decide about stale RUNNING tasks by `action`. False: leave them and list them."""
    running_stale_threshold_ms: int = 300_000
    check_interval_ms: int = 30_000
    """How often the reaper looks for what only a threshold can tell."""
    runner_heartbeat_interval_ms: int = 30_000
    claimer_heartbeat_interval_ms: int = 30_000
    heartbeat_retention_hours: int | None = 24
    worker_state_retention_hours: int | None = 168
    terminal_record_retention_hours: int | None = 720
    """None keeps the records for ever; so it does for the two above."""
    action: CrashAction = "retry"
    """For a task without `on_crash`: another attempt if it has one, FAILED, or back without using an attempt."""
    max_recovery_attempts: int = 3
    """After so many crashes of its own process a task is set aside, whatever the action."""
    integrity_check_on_startup: bool = True
    session_grace_ms: int | None = 3_000
    """How long a worker that lost its PostgreSQL session is waited for; None leaves only the thresholds."""
    exclusive_lease_ms: int = 30_000

    def __post_init__(self) -> None:
        checks.raise_for(
            (
                checks.flag("auto_requeue_stale_claimed", self.auto_requeue_stale_claimed),
                _ms("claimed_stale_threshold_ms", self.claimed_stale_threshold_ms, SECOND, HOUR),
                checks.flag("auto_fail_stale_running", self.auto_fail_stale_running),
                _ms("running_stale_threshold_ms", self.running_stale_threshold_ms, SECOND, 2 * HOUR),
                _ms("check_interval_ms", self.check_interval_ms, SECOND, 10 * MINUTE),
                _ms("runner_heartbeat_interval_ms", self.runner_heartbeat_interval_ms, SECOND, 2 * MINUTE),
                _ms("claimer_heartbeat_interval_ms", self.claimer_heartbeat_interval_ms, SECOND, 2 * MINUTE),
                _hours("heartbeat_retention_hours", self.heartbeat_retention_hours),
                _hours("worker_state_retention_hours", self.worker_state_retention_hours),
                _hours("terminal_record_retention_hours", self.terminal_record_retention_hours),
                checks.one_of("action", self.action, ACTIONS),
                checks.whole("max_recovery_attempts", self.max_recovery_attempts, 1, 1_000),
                checks.flag("integrity_check_on_startup", self.integrity_check_on_startup),
                checks.whole("session_grace_ms", self.session_grace_ms, 0, HOUR, unit=" ms", optional=True),
                _ms("exclusive_lease_ms", self.exclusive_lease_ms, 5 * SECOND, HOUR),
                self._too_tight("running_stale_threshold_ms", "runner_heartbeat_interval_ms"),
                self._too_tight("claimed_stale_threshold_ms", "claimer_heartbeat_interval_ms"),
            ),
            subject="RecoveryConfig",
        )

    @classmethod
    def high_availability(cls, **overrides: Any) -> Self:
        """Fast detection for several replicas: a beat every 10 s, stale after a minute, what was running fails."""
        preset: dict[str, Any] = {
            "runner_heartbeat_interval_ms": 10_000,
            "claimer_heartbeat_interval_ms": 10_000,
            "running_stale_threshold_ms": 60_000,
            "claimed_stale_threshold_ms": 60_000,
            "check_interval_ms": 30_000,
            "heartbeat_retention_hours": 1,
            "action": "fail",
        }
        return cls(**preset | overrides)

    def to_policy(self) -> RecoveryPolicy:
        """The part that decides about tasks."""
        return RecoveryPolicy(action=self.action, max_recovery_attempts=self.max_recovery_attempts)

    def to_facts(self) -> dict[str, Any]:
        return asdict(self)

    def _too_tight(self, threshold: str, interval: str) -> str | None:
        """One lost beat must not make a task stale."""
        silence, beat = getattr(self, threshold), getattr(self, interval)
        if not isinstance(silence, int) or not isinstance(beat, int) or silence >= 2 * beat:
            return None
        return f"{threshold} ({silence}) must be at least twice {interval} ({beat}): {2 * beat} or more"


def _ms(name: str, value: object, low: int, high: int) -> str | None:
    return checks.whole(name, value, low, high, unit=" ms")


def _hours(name: str, value: object) -> str | None:
    return checks.whole(name, value, 1, TEN_YEARS_HOURS, unit=" hours", optional=True)
