"""What the janitor deletes in a simulation. A copy of each row stays, so what was promised of it can still be checked;
and nothing may go that is young, lives, or is needed by what lives (PROTOCOL 32)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.words import SECOND

from everbeat.config import RecoveryConfig
from everbeat.model.retention import Bite, Cut, Kept
from everbeat.store.interface import Store

TABLES = ("tasks", "attempts", "late_outcomes", "events", "workers", "workflows", "workflow_tasks")
VIEWS = """
CREATE VIEW sim_{table} AS SELECT * FROM everbeat_{table} UNION ALL SELECT * FROM sim_old_{table};
"""
"""Of all rows that there ever were."""
SQLITE = """
CREATE TABLE sim_old_{table} AS SELECT * FROM everbeat_{table} WHERE 1 = 0;
CREATE TRIGGER sim_keep_{table} AFTER DELETE ON everbeat_{table}
BEGIN INSERT INTO sim_old_{table} VALUES ({columns}); END;
"""
POSTGRES = """
CREATE TABLE sim_old_{table} (LIKE everbeat_{table});
CREATE FUNCTION sim_keep_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO sim_old_{table} SELECT OLD.*; RETURN NULL; END $$;
CREATE TRIGGER sim_keep_{table} AFTER DELETE ON everbeat_{table} FOR EACH ROW EXECUTE FUNCTION sim_keep_{table}();
"""

HOURS_IN_A_SECOND = 3600
MINUTES_IN_A_SECOND = 60

TASKS = """
SELECT t.id, t.finished_at,
       t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED') AND t.quarantined = 0
       AND NOT EXISTS (SELECT 1 FROM everbeat_workflows w WHERE w.id = t.workflow_id)
  FROM sim_old_tasks t"""
WORKFLOWS = """
SELECT w.id, r.finished_at,
       w.status IN ('COMPLETED', 'FAILED', 'CANCELLED') AND w.nodes_left = 0
       AND NOT EXISTS (SELECT 1 FROM everbeat_tasks t
                        WHERE t.workflow_id = w.id AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING'))
  FROM sim_old_workflows w LEFT JOIN sim_old_workflows r ON r.id = w.root_id"""
WORKERS = """
SELECT w.id, w.ended_at,
       w.status <> 'alive' AND NOT EXISTS (SELECT 1 FROM everbeat_tasks t
                                            WHERE t.worker_id = w.id AND t.status IN ('CLAIMED', 'RUNNING'))
  FROM sim_old_workers w"""
# It goes with its task, however young it is.
OF_A_TASK = """
SELECT r.id, 0, NOT EXISTS (SELECT 1 FROM everbeat_tasks t WHERE t.id = r.task_id) FROM sim_old_{table} r"""
EVENTS = "SELECT id, at, 1 = 1 FROM sim_old_events"
COUNT = f"SELECT {' + '.join(f'(SELECT count(*) FROM sim_old_{table})' for table in TABLES)}"


class QuickDays:
    """A store, for a janitor to whom an hour is a second, and a minute is one when it waits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def retention_is_due(self, *, every_us: int) -> bool:
        return self._store.retention_is_due(every_us=every_us // HOURS_IN_A_SECOND)

    def retain(self, cut: Cut, *, worker_id: str, lease_us: int) -> Bite | None:
        sooner = replace(cut, older_than_us=cut.older_than_us // HOURS_IN_A_SECOND)
        return self._store.retain(sooner, worker_id=worker_id, lease_us=lease_us // MINUTES_IN_A_SECOND)

    def retention_done(self, deleted: dict[Kept, int]) -> None:
        self._store.retention_done(deleted)


def keeping(seconds: int, workers: int) -> RecoveryConfig:
    """For the janitor."""
    return RecoveryConfig(
        heartbeat_retention_hours=1, worker_state_retention_hours=workers, terminal_record_retention_hours=seconds
    )


class Deletions:
    """What was deleted so far, and has been looked at."""

    def __init__(self, ask: Callable[..., Sequence[Any]], *, keeps: int, keeps_workers: int) -> None:
        self._ask = ask
        records = {
            "task": TASKS, "workflow": WORKFLOWS, "event": EVENTS,
            "attempt": OF_A_TASK.format(table="attempts"),
            "late outcome": OF_A_TASK.format(table="late_outcomes"),
        }  # fmt: skip
        self._looks = [(what, question, keeps) for what, question in records.items()]
        self._looks.append(("worker", WORKERS, keeps_workers))
        self._seen: set[tuple[str, Any]] = set()
        self._count = 0

    def wrong(self, now: int) -> Iterator[str]:
        """Right after a commit that may have deleted something."""
        ((count,),) = self._ask(COUNT)
        if count == self._count:
            return
        self._count = count
        for what, question, seconds in self._looks:
            for name, ended_at, is_needless in self._ask(question):
                if (what, name) in self._seen:
                    continue
                self._seen.add((what, name))
                if ended_at is None or now - ended_at < seconds * SECOND:
                    yield f"the {what} {name} was deleted; it ended at {ended_at}, and it is {now}"
                if not is_needless:
                    yield f"the {what} {name} was deleted, and it is needed"
