"""Ask for the end of tasks that run: a flag on their rows, which their owner reads (PROTOCOL 21).

The fence is left as it is, so the owner can still settle the task; it is CANCELLED when its process has ended it, and
whoever recovers it finds the flag. Asked twice is asked once.
"""

from collections.abc import Sequence

from everbeat.store.transaction import Transaction
from everbeat.store.verbs.records import text

CANCEL_REQUESTED = "cancel_requested"
"""In the history, beside the changes of state."""

RUNNING = "SELECT seq, worker_id, cancel_requested_at FROM everbeat_tasks WHERE seq IN ({seqs}) AND status = 'RUNNING'"

REQUEST = "UPDATE everbeat_tasks SET cancel_requested_at = ? WHERE seq IN ({seqs})"

ADD_HISTORY = """
INSERT INTO everbeat_history (task_id, at, actor, change, old_status, new_status, reason, attempt, fence, worker_id)
SELECT id, ?, ?, ?, status, status, ?, attempt, fence, worker_id FROM everbeat_tasks WHERE seq IN ({seqs})"""

# everbeat_tasks_owned. Read when somebody has asked, and now and then.
REQUESTED_OF = """
SELECT seq, fence FROM everbeat_tasks
 WHERE status IN ('CLAIMED', 'RUNNING') AND worker_id = ? AND cancel_requested_at IS NOT NULL"""


def request(tx: Transaction, seqs: Sequence[int], *, actor: str, reason: str) -> tuple[set[int], set[str]]:
    """Ask for the end of those of them that run; which these are, and whose."""
    running = tx.all(RUNNING.format(seqs=_marks(seqs)), list(seqs))
    new = [seq for seq, _, asked_at in running if asked_at is None]
    if new:
        tx.run(ADD_HISTORY.format(seqs=_marks(new)), [tx.now, text(actor), CANCEL_REQUESTED, reason, *new])
        tx.run(REQUEST.format(seqs=_marks(new)), [tx.now, *new])
    return {seq for seq, _, _ in running}, {worker_id for _, worker_id, _ in running}


def requested_of(tx: Transaction, worker_id: str) -> list[tuple[int, int]]:
    """(seq, fence) of the tasks of this worker that somebody wants to end."""
    return [(seq, fence) for seq, fence in tx.all(REQUESTED_OF, (worker_id,))]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
