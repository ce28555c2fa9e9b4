"""Tasks whose name no living worker knows: they wait, visibly, and fail with UNKNOWN_TASK after a while (PROTOCOL 26).

A name is watched from the moment somebody sees it waiting in vain. The time counts while somebody keeps looking: when
all workers were away, it begins anew, so the first one that starts on Monday does not fail what the second one knows. A
task counts from when it could have run, so one that was sent a minute ago is not failed for those before it.
"""

from collections.abc import Iterator

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.state import Change
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs import flow_ends, living
from everbeat.store.verbs.kinds import NEXT_QUEUE
from everbeat.store.verbs.records import Records
from everbeat.store.verbs.turns import hand_over, let_go
from everbeat.store.verbs.unsound import LARGEST

UNKNOWN_TASK = "UNKNOWN_TASK"
ACTOR = "system/unknown"
BITE = 500
NAMES = 1000
"""So many names are looked at in one go, at most."""

# everbeat_tasks_ready, one step for each name of a queue.
NEXT_NAME = """
SELECT name FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = ? AND name > ?
 ORDER BY name LIMIT 1"""
WAITING = f"""
SELECT seq, fence, id, attempt, exclusive_key FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = ? AND name = ? AND run_at <= ?
   AND fence BETWEEN 0 AND {LARGEST}
 LIMIT ? /*pg: FOR UPDATE SKIP LOCKED */"""

WATCHED = "SELECT name, clock_id, since_mono, seen_mono FROM everbeat_unknown"
WATCH = """
INSERT INTO everbeat_unknown (name, clock_id, since_mono, seen_mono) VALUES (:name, :clock_id, :mono, :mono)
ON CONFLICT (name) DO UPDATE
   SET since_mono = CASE WHEN everbeat_unknown.clock_id = :clock_id
                          AND everbeat_unknown.seen_mono BETWEEN :mono - :gap AND :mono THEN everbeat_unknown.since_mono
                         ELSE :mono END,
       clock_id = :clock_id, seen_mono = :mono"""
FORGET = "DELETE FROM everbeat_unknown WHERE name = ?"

PAUSED = "SELECT name FROM everbeat_queues WHERE paused = 1"

# Primary key; a task that somebody has taken meanwhile is left alone.
FAIL = """
UPDATE everbeat_tasks
   SET status = 'FAILED', fence = fence + 1, finished_at = ?, error_code = ?, error_message = ?, error = NULL
 WHERE seq = ? AND fence = ? AND status = 'PENDING'"""


def is_due(tx: Transaction) -> bool:
    """Whether there is anything to watch, or to watch no more."""
    return next(_unknown(tx), None) is not None or tx.one(WATCHED) is not None


def refuse(tx: Transaction, *, after_us: int, gap_us: int) -> list[str]:
    """Watch the names that nobody knows; the ids of those that have failed, at most one bite. `gap_us`: looks further
    apart than that are not one watch."""
    found = list(_unknown(tx))
    unknown = {name for _, name in found}
    known = _known(tx)
    tx.many(FORGET, [(name,) for name, *_ in tx.all(WATCHED) if name in known])
    values = {"clock_id": tx.clock_id, "mono": tx.mono, "gap": gap_us}
    tx.many(WATCH, [values | {"name": name} for name in sorted(unknown, key=str)])
    since = {name: at for name, _, at, _ in tx.all(WATCHED) if name in unknown and isinstance(at, int)}
    lost = {name for name, at in since.items() if tx.mono - at >= after_us}
    failed: list[str] = []
    for queue, name in found:
        if name in lost and len(failed) < BITE:
            failed += _fail(tx, queue, name, after_us, BITE - len(failed))
    hand_over(tx)
    return failed


def _fail(tx: Transaction, queue: str, name: str, after_us: int, limit: int) -> list[str]:
    reason = f"no worker that was running in the last {_words(after_us)} knows the task {name}"
    tasks = tx.all(WAITING, (queue, name, tx.now - after_us, limit))
    seqs = [seq for seq, *_ in tasks]
    roots = flow_ends.lock_of(tx, seqs)
    tx.many(FAIL, [(tx.now, UNKNOWN_TASK, reason, seq, fence) for seq, fence, *_ in tasks])
    records = Records(tx)
    for _, fence, task_id, attempt, _ in tasks:
        records.history(
            task_id=task_id, actor=ACTOR, change=Change.GIVE_UP, reason=reason, attempt=attempt, fence=fence
        )
        facts = {"name": name, "attempt": attempt, "action": "failed", "reason": reason, "code": UNKNOWN_TASK}
        records.event(Event(name=event.TASK_FAILED, task_id=task_id, facts=facts))
    records.write()
    flow_ends.follow(tx, roots, seqs)
    let_go(tx, [row[4] for row in tasks])
    return [row[2] for row in tasks]


def _unknown(tx: Transaction) -> Iterator[tuple[str, str]]:
    """Queue and name of ready tasks that nobody knows. What is paused waits for something else."""
    known = _known(tx)
    paused = {name for (name,) in tx.all(PAUSED)}
    queue: Row | None = ("",)
    seen = 0
    while queue := tx.one(NEXT_QUEUE, queue):
        name: Row | None = ("",) if queue[0] not in paused else None
        while seen < NAMES and name and (name := tx.one(NEXT_NAME, (queue[0], name[0]))):
            if name[0] not in known and isinstance(name[0], str) and isinstance(queue[0], str):
                seen += 1
                yield queue[0], name[0]


def _known(tx: Transaction) -> set[str]:
    return {name for _, _, names in tx.all(living.SERVED) for name in living.names_in(names) or ()}


def _words(us: int) -> str:
    minutes = us // 60_000_000
    return f"{minutes} minutes" if minutes else f"{us / 1_000_000:.0f} seconds"
