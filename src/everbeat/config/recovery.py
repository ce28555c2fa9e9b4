"""When a silent task counts as stale, what becomes of it, and for how long the traces are kept."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from everbeat.config.catalogue import RECOVERY_ENABLED
from everbeat.config.complete import Completion
from everbeat.config.rules import Flag, OneOf, Whole
from everbeat.config.setting import CODE, DEFAULT, Settings, section, setting
from everbeat.config.surroundings import recovery_is_switched_off
from everbeat.model.recovery import RecoveryPolicy
from everbeat.model.task import CrashAction

ACTIONS: tuple[CrashAction, ...] = ("retry", "fail", "pending")
SWITCHED_OFF = ("auto_requeue_stale_claimed", "auto_fail_stale_running", "integrity_check_on_startup")
"""By EVERBEAT_RECOVERY_ENABLED=0."""
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
_INTERVAL = Whole(low=SECOND, high=2 * MINUTE, unit="ms")
_RETENTION = Whole(low=1, high=87_600, unit="hours", optional=True)


@section("recovery")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig(Settings):
    """When a silent task counts as stale, what becomes of it, and how long the traces of work are kept.

    What is left out comes from EVERBEAT_RECOVERY_..., the configuration file, or the default. A threshold is at least
    twice its heartbeat interval; ConfigError, a ValueError, lists everything that is wrong.
    """

    auto_requeue_stale_claimed: bool = setting(True, Flag())
    """Return stale CLAIMED tasks to the queue; their code never ran. False: leave them and list them."""
    claimed_stale_threshold_ms: int = setting(120_000, Whole(low=SECOND, high=HOUR, unit="ms"))
    """Without a beat for so long a CLAIMED task is stale. At least twice `claimer_heartbeat_interval_ms`."""
    auto_fail_stale_running: bool = setting(True, Flag())
    """Decide about stale RUNNING tasks by `action`. False: leave them and list them."""
    running_stale_threshold_ms: int = setting(300_000, Whole(low=SECOND, high=2 * HOUR, unit="ms"))
    """Without a beat for so long a RUNNING task is stale. At least twice `runner_heartbeat_interval_ms`."""
    check_interval_ms: int = setting(30_000, Whole(low=SECOND, high=10 * MINUTE, unit="ms"))
    """How often the reaper looks for what only a threshold can tell."""
    runner_heartbeat_interval_ms: int = setting(30_000, _INTERVAL)
    """How often a worker beats for its RUNNING tasks."""
    claimer_heartbeat_interval_ms: int = setting(30_000, _INTERVAL)
    """How often a worker beats for its CLAIMED tasks."""
    heartbeat_retention_hours: int | None = setting(24, _RETENTION)
    """How long heartbeats are kept. None keeps them for ever."""
    worker_state_retention_hours: int | None = setting(168, _RETENTION)
    """How long snapshots of workers are kept. None keeps them for ever."""
    terminal_record_retention_hours: int | None = setting(720, _RETENTION)
    """How long ended tasks and workflows are kept. None keeps them for ever."""
    action: CrashAction = setting("retry", OneOf(choices=ACTIONS))
    """For a task without `on_crash`: another attempt if it has one, FAILED, or back without using an attempt."""
    max_recovery_attempts: int = setting(3, Whole(low=1, high=1_000))
    """After so many crashes of its own process a task is set aside, whatever the action."""
    integrity_check_on_startup: bool = setting(True, Flag())
    """Check the store before a worker starts to work."""
    session_grace_ms: int | None = setting(3_000, Whole(low=0, high=HOUR, unit="ms", optional=True))
    """How long a worker that lost its PostgreSQL session is waited for; None leaves only the thresholds."""
    exclusive_lease_ms: int = setting(30_000, Whole(low=5 * SECOND, high=HOUR, unit="ms"))
    """A task with an exclusive key stops itself before so much time without contact has passed."""

    def __post_init__(self) -> None:
        completion = Completion(self)
        completion.add(
            (
                self._too_tight("running_stale_threshold_ms", "runner_heartbeat_interval_ms"),
                self._too_tight("claimed_stale_threshold_ms", "claimer_heartbeat_interval_ms"),
            )
        )
        is_off, problem = recovery_is_switched_off()
        completion.add([problem])
        if is_off:
            for name in SWITCHED_OFF:
                completion.put(name, False)
                self.with_origins({name: RECOVERY_ENABLED})
        completion.finish()

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
        """Plain JSON values."""
        return asdict(self)

    def _too_tight(self, threshold: str, interval: str) -> str | None:
        """One lost beat must not make a task stale."""
        silence, beat = getattr(self, threshold), getattr(self, interval)
        if not isinstance(silence, int) or not isinstance(beat, int) or silence >= 2 * beat:
            return None
        return (
            f"{threshold} ({silence}{self._said_by(threshold)}) must be at least twice "
            f"{interval} ({beat}{self._said_by(interval)}): {2 * beat} or more"
        )

    def _said_by(self, name: str) -> str:
        origin = self.origin(name)
        return {CODE: "", DEFAULT: ", the default"}.get(origin, f", by {origin}")
