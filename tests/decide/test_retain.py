"""For how long records are kept, by the three settings."""

from everbeat.decide.retain import cuts_for
from everbeat.model.retention import Kept

HOUR_US = 3_600 * 1_000_000


def ages(heartbeat: int | None, state: int | None, record: int | None) -> dict[Kept, float]:
    cuts = cuts_for(heartbeat_hours=heartbeat, worker_state_hours=state, record_hours=record)
    return {cut.kept: cut.older_than_us / HOUR_US for cut in cuts}


def test_each_setting_rules_its_own_records() -> None:
    assert ages(24, 168, 720) == {
        Kept.HEARTBEATS: 24,
        Kept.WORKER_STATES: 168,
        Kept.WORKERS: 168,
        Kept.WORKFLOWS: 720,
        Kept.TASKS: 720,
        Kept.ATTEMPTS: 720,
        Kept.LATE_OUTCOMES: 720,
        Kept.EVENTS: 720,
        Kept.HISTORY: 90 * 24,
        Kept.REPORTS: 90 * 24,
    }


def test_none_switches_off_what_it_rules_and_nothing_else() -> None:
    assert Kept.HEARTBEATS not in ages(None, 168, 720)
    assert set(ages(None, 168, None)) == {Kept.WORKER_STATES, Kept.WORKERS}
    assert set(ages(24, None, None)) == {Kept.HEARTBEATS}
    assert ages(None, None, None) == {}


def test_the_history_of_a_task_is_kept_for_at_least_as_long_as_the_task() -> None:
    assert ages(24, 168, 24 * 365)[Kept.HISTORY] == 24 * 365
