"""Ask for the end of tasks that run: a flag on their rows, which their owner reads (PROTOCOL 21).

An owner reads as well what is still its own: a run that was taken from it, by a person or by a recovery, must end, too.

The fence is left as it is, so the owner can still settle the task; it is CANCELLED when its process has ended it, and
whoever recovers it finds the flag. Asked twice is asked once.
"""

from collections.abc import Sequence

from everbeat.model.worker import WorkerStatus
from everbeat.store.messages import Ours
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.living import BEATER
from everbeat.store.verbs.owning import is_older
from everbeat.store.verbs.records import text

CANCEL_REQUESTED = "cancel_requested"
"""In the history, beside the changes of state."""

RUNNING = "SELECT seq, worker_id, cancel_requested_at FROM everbeat_tasks WHERE seq IN ({marks}) AND status = 'RUNNING'"

REQUEST = "UPDATE everbeat_tasks SET cancel_requested_at = ? WHERE seq IN ({marks})"

ADD_HISTORY = """
INSERT INTO everbeat_history (task_id, at, actor, change, old_status, new_status, reason, attempt, fence, worker_id)
SELECT id, ?, ?, ?, status, status, ?, attempt, fence, worker_id FROM everbeat_tasks WHERE seq IN ({marks})"""

OWNERS_OF = """
SELECT DISTINCT worker_id FROM everbeat_tasks
 WHERE seq IN ({marks}) AND status IN ('CLAIMED', 'RUNNING') AND worker_id IS NOT NULL"""

# everbeat_tasks_owned. Read when somebody has asked, and now and then.
OWNED_BY = """
SELECT seq, fence, CASE WHEN cancel_requested_at IS NULL THEN 0 ELSE 1 END FROM everbeat_tasks
 WHERE status IN ('CLAIMED', 'RUNNING') AND worker_id = ?"""


def request(tx: Transaction, seqs: Sequence[int], *, actor: str, reason: str) -> tuple[set[int], set[str]]:
    """Ask for the end of those of them that run; which these are, and whose."""
    running = tx.among(RUNNING, (), seqs)
    new = [seq for seq, _, asked_at in running if asked_at is None]
    if new:
        tx.change_among(ADD_HISTORY, (tx.now, text(actor), CANCEL_REQUESTED, reason), new)
        tx.change_among(REQUEST, (tx.now,), new)
    return {seq for seq, _, _ in running}, {worker_id for _, worker_id, _ in running}


def owners_of(tx: Transaction, seqs: Sequence[int]) -> set[str]:
    """Whose tasks these are: they must hear of it if these are taken from them."""
    return {worker_id for (worker_id,) in tx.among(OWNERS_OF, (), seqs)}


def ours(tx: Transaction, worker_id: str, *, seen_beat: int) -> Ours:
    """What this worker owns, and what of it somebody wants to end. What it holds and is not here was taken from it."""
    standing = tx.one(BEATER, (worker_id,))
    if standing is None or is_older(standing, seen_beat):
        return Ours(alive=False, is_older=True)
    owned = {(seq, fence): bool(is_wanted) for seq, fence, is_wanted in tx.rows(OWNED_BY, (worker_id,))}
    return Ours(alive=standing[0] == WorkerStatus.ALIVE, owned=owned)
