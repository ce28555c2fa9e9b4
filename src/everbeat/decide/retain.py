"""For how long each kind of record is kept.

Three settings, each of which may be None: then nothing of what it rules is ever deleted. What belongs to a task ends
with the task; history and reports are an audit trail and live for 90 days, or as long as tasks do if that is longer.
"""

from everbeat.model.retention import Cut, Kept

HOUR_US = 3_600_000_000
AUDIT_HOURS = 90 * 24


def cuts_for(*, heartbeat_hours: int | None, worker_state_hours: int | None, record_hours: int | None) -> list[Cut]:
    """What may be deleted, the smallest records first."""
    audit_hours = None if record_hours is None else max(AUDIT_HOURS, record_hours)
    ages = {
        Kept.HEARTBEATS: heartbeat_hours,
        Kept.WORKER_STATES: worker_state_hours,
        Kept.WORKERS: worker_state_hours,
        Kept.WORKFLOWS: record_hours,  # before their tasks
        Kept.TASKS: record_hours,
        Kept.ATTEMPTS: record_hours,
        Kept.LATE_OUTCOMES: record_hours,
        Kept.EVENTS: record_hours,
        Kept.HISTORY: audit_hours,
        Kept.REPORTS: audit_hours,
    }
    return [Cut(kept=kept, older_than_us=hours * HOUR_US) for kept, hours in ages.items() if hours is not None]
