"""Find what has no owner any more, and write what was decided about it.

"Dead owner with owned tasks" is itself the query, so a crash between declaring a worker dead and recovering its tasks
repairs itself (PROTOCOL 2). Verdicts are written under the fence: a task that moved in the meantime is left alone. One
that can not be written is undone alone and told; the rest of its batch is committed.
"""

from collections.abc import Sequence

from everbeat.decide.liveness import MISSED_BEATS
from everbeat.model.recovery import (
    RECOVERY_ACTOR,
    Orphan,
    RecoveryReport,
    Settled,
    Settlement,
    Superseded,
    Unsettled,
    Verdict,
)
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.store.interface import StaleTask
from everbeat.store.moments import moment_or_none
from everbeat.store.transaction import Row, RowRefused, Transaction
from everbeat.store.verbs.owning import NOW, end
from everbeat.store.verbs.queueing import Places
from everbeat.store.verbs.records import Records
from everbeat.store.verbs.turns import hand_over

CLAIM_COLUMNS = """t.seq, t.id, t.name, t.queue, t.fence, t.status, t.attempt, t.free_attempts, t.crash_count,
       t.lost_count, t.dispatch_count, t.solo, t.policy, t.worker_id, t.exclusive_key,
       t.cancel_requested_at IS NOT NULL"""

# everbeat_tasks_owned, one step per owner.
NEXT_OWNER = """
SELECT worker_id FROM everbeat_tasks
 WHERE status IN ('CLAIMED', 'RUNNING') AND worker_id >= ? ORDER BY worker_id LIMIT 1"""

IS_GONE = "SELECT status <> 'alive' FROM everbeat_workers WHERE id = ?"

# everbeat_tasks_owned; entries of one owner stand in the order of seq.
OWNED_BY = f"""
SELECT {CLAIM_COLUMNS} FROM everbeat_tasks t
 WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.worker_id IS ? AND t.seq > ? ORDER BY t.seq LIMIT ?"""

SILENT_OWNERS = """
SELECT id FROM everbeat_workers
 WHERE status = 'alive' AND (boot_id <> ? OR ? - beat_mono > max(?, ? * beat_interval_ms))"""

CLAIMED_BY = f"""
SELECT {CLAIM_COLUMNS} FROM everbeat_tasks t
 WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.worker_id = ? AND t.status = 'CLAIMED'"""

STALE = """
SELECT t.id, t.name, t.queue, t.status, t.worker_id, w.hostname, w.pid, t.started_at, t.seq, t.fence, w.beat_at,
       (SELECT max(h.sent_at) FROM everbeat_heartbeats h WHERE h.task_id = t.id AND h.fence = t.fence)
  FROM everbeat_tasks t LEFT JOIN everbeat_workers w ON w.id = t.worker_id
 WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.worker_id IS ? AND t.status = ?"""

SAVE_REPORT = "INSERT INTO everbeat_recovery_reports (at, actor, report) VALUES (?, ?, ?)"
REPORTS = "SELECT report FROM everbeat_recovery_reports ORDER BY id DESC LIMIT ?"

NOTHING = ""
"""Sorts before the id of every worker."""


def orphans(tx: Transaction, *, limit: int, after: Claim | None = None) -> list[Claim]:
    """Owned tasks whose owner is dead, stopped, unknown or NULL, in a fixed order; `after` is the last one seen."""
    found: list[Row] = []
    if after is None or after.worker_id is None:
        found = tx.all(OWNED_BY, (None, after.seq if after else 0, limit))
    owner = after.worker_id if after and after.worker_id is not None else NOTHING
    while len(found) < limit and (row := tx.one(NEXT_OWNER, (owner,))):
        owner = row[0]
        if _is_gone(tx, owner):
            seen = after.seq if after and after.worker_id == owner else 0
            found += tx.all(OWNED_BY, (owner, seen, limit - len(found)))
        owner = _following(owner)
    return [_claim(row) for row in found]


def owned_by(tx: Transaction, worker_id: str, *, limit: int) -> list[Claim]:
    return [_claim(row) for row in tx.all(OWNED_BY, (worker_id, 0, limit))]


def recover(
    tx: Transaction, verdicts: Sequence[tuple[Orphan, Verdict]], *, actor: str = RECOVERY_ACTOR
) -> list[Settlement]:
    """All together; one by one only if one of them can not be written."""
    try:
        with tx.part():
            return _recover(tx, verdicts, actor)
    except RowRefused:
        return [_recover_one(tx, orphan, verdict, actor) for orphan, verdict in verdicts]


def requeue_silent_claims(tx: Transaction, *, boot_id: str, silent_for_us: int, reason: str) -> int:
    """Silence is tested here, in the transaction that acts on it."""
    verdict = Verdict(change=Change.RECOVER, reason=reason, billed=False)
    records = Records(tx)
    claims = [
        _claim(row)
        for owner in _silent_owners(tx, boot_id, silent_for_us, missed_beats=MISSED_BEATS)
        for row in tx.all(CLAIMED_BY, (owner,))
    ]
    requeued = sum(end(tx, claim, verdict, records, actor=RECOVERY_ACTOR) is not None for claim in claims)
    records.write()
    hand_over(tx, {claim.exclusive_key for claim in claims})
    return requeued


def stale_tasks(tx: Transaction, status: TaskStatus, *, boot_id: str, silent_for_us: int) -> list[StaleTask]:
    """Tasks whose owner has been silent for that long, or is gone. A look: the threshold is the asker's alone."""
    silent = set(_silent_owners(tx, boot_id, silent_for_us, missed_beats=0))
    owners: list[str | None] = [None]
    owner = NOTHING
    while row := tx.one(NEXT_OWNER, (owner,)):
        if row[0] in silent or _is_gone(tx, row[0]):
            owners.append(row[0])
        owner = _following(row[0])
    return [_stale(row) for owner_id in owners for row in tx.all(STALE, (owner_id, status.value))]


def save_report(tx: Transaction, report: RecoveryReport, *, actor: str) -> None:
    tx.run(SAVE_REPORT, (tx.now, actor, report.to_json()))


def reports(tx: Transaction, *, limit: int) -> list[RecoveryReport]:
    return [RecoveryReport.from_json(text) for (text,) in tx.all(REPORTS, (limit,))]


def _following(owner: str) -> str:
    """The smallest text after it: the owners are leapt through, however many tasks each of them has."""
    return owner + "\x01"


def _is_gone(tx: Transaction, worker_id: str) -> bool:
    gone = tx.one(IS_GONE, (worker_id,))
    return gone is None or bool(gone[0])


def _silent_owners(tx: Transaction, boot_id: str, silent_for_us: int, *, missed_beats: float) -> list[str]:
    values = (boot_id, tx.mono, silent_for_us, round(missed_beats * 1000))
    return [owner for (owner,) in tx.all(SILENT_OWNERS, values)]


def _recover(tx: Transaction, verdicts: Sequence[tuple[Orphan, Verdict]], actor: str) -> list[Settlement]:
    records = Records(tx)
    settlements = [_recovered(tx, orphan, verdict, records, actor) for orphan, verdict in verdicts]
    records.write()
    hand_over(tx, {orphan.claim.exclusive_key for orphan, _ in verdicts})
    Places(tx).offer_in({orphan.claim.queue for orphan, _ in verdicts})
    return settlements


def _recovered(tx: Transaction, orphan: Orphan, verdict: Verdict, records: Records, actor: str) -> Settlement:
    made = end(tx, orphan.claim, verdict, records, actor=actor)
    if made is None:
        return _superseded(tx, orphan.claim)
    return Settled(task_id=orphan.claim.id, change=made if made is not verdict.change else None)


def _recover_one(tx: Transaction, orphan: Orphan, verdict: Verdict, actor: str) -> Settlement:
    try:
        with tx.part():
            return _recover(tx, [(orphan, verdict)], actor)[0]
    except RowRefused as error:
        return Unsettled(task_id=orphan.claim.id, error=str(error))


def _superseded(tx: Transaction, claim: Claim) -> Superseded:
    now = tx.one(NOW, (claim.seq,))
    return Superseded(task_id=claim.id, status=now[0] if now else "DELETED", by=now[1] if now else -1)


def _claim(row: Row) -> Claim:
    return Claim(
        seq=row[0], id=row[1], name=row[2], queue=row[3], fence=row[4], status=TaskStatus(row[5]), attempt=row[6],
        free_attempts=row[7], crash_count=row[8], lost_count=row[9], dispatch_count=row[10], solo=bool(row[11]),
        policy=row[12], args=b"", worker_id=row[13], exclusive_key=row[14],
        cancel_requested=bool(row[15]),
    )  # fmt: skip


def _stale(row: Row) -> StaleTask:
    return StaleTask(
        id=row[0], task_name=row[1], queue=row[2], status=row[3], worker_id=row[4], worker_hostname=row[5],
        worker_pid=row[6], started_at=moment_or_none(row[7]), seq=row[8], fence=row[9],
        last_heartbeat=moment_or_none(max((at for at in (row[7], row[10], row[11]) if at is not None), default=None)),
    )  # fmt: skip
