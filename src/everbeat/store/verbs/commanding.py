"""What a person asks for: cancel, another run. Named changes of the transition table, always in the history."""

from everbeat.model.state import Change, TaskStatus, sources, target
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.records import Records

FIND = "SELECT seq, status, attempt, fence, worker_id FROM everbeat_tasks WHERE id = ?"

# Primary key. The fence grows, so an owner that has claimed the task can not start it any more.
CANCEL = """
UPDATE everbeat_tasks
   SET status = 'CANCELLED', fence = fence + 1, finished_at = ?, due_at = NULL, waiting_for = NULL
 WHERE seq = ? AND fence = ? AND status = ?"""

# Fresh counters: attempt keeps growing because it names runs, so the earlier ones become unbilled.
REVIVE = """
UPDATE everbeat_tasks
   SET status = 'PENDING', fence = fence + 1, worker_id = NULL, free_attempts = attempt, crash_count = 0,
       lost_count = 0, dispatch_count = 0, solo = max(solo, quarantined), quarantined = 0, due_at = NULL, run_at = ?,
       started_at = NULL, finished_at = NULL, waiting_for = NULL, error_code = NULL, error_message = NULL, error = NULL
 WHERE seq = ? AND fence = ? AND status = ?"""

UNBEGUN = (TaskStatus.PENDING, TaskStatus.CLAIMED)


def cancel(tx: Transaction, task_id: str, *, actor: str) -> bool:
    """Cancel a task whose code has not begun. False: it runs or has ended."""
    return _change(tx, task_id, Change.CANCEL, CANCEL, UNBEGUN, actor=actor, reason="cancelled")


def revive(tx: Transaction, task_id: str, *, actor: str) -> bool:
    allowed = sources(Change.REVIVE)
    return _change(tx, task_id, Change.REVIVE, REVIVE, allowed, actor=actor, reason="another run was asked for")


def _change(tx: Transaction, task_id: str, change: Change, statement: str, allowed: tuple[TaskStatus, ...], *,
            actor: str, reason: str) -> bool:  # fmt: skip
    found = tx.one(FIND, (task_id,))
    if found is None or found[1] not in allowed:
        return False
    seq, status, attempt, fence, worker_id = found
    tx.run(statement, (tx.now, seq, fence, status))
    records = Records(tx)
    records.history(
        task_id=task_id, actor=actor, change=change, old=status, new=target(change), reason=reason, attempt=attempt,
        fence=fence, worker_id=worker_id,
    )  # fmt: skip
    records.write()
    return True
