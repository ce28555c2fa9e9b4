"""Find what has no owner any more, and write what was decided about it.

"Dead owner with owned tasks" is itself the query, so a crash between declaring a worker dead and recovering its tasks
repairs itself (PROTOCOL 2). Verdicts are written under the fence: a task that moved in the meantime is left alone. One
that can not be written is undone alone and told; the rest of its batch is committed.

Tasks that share verdict, state, owner and fence are written together (classes.py).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from everbeat.decide.liveness import MISSED_BEATS
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import RECOVERY_ACTOR, Orphan, Settled, Settlement, Superseded, Unsettled, Verdict
from everbeat.model.report import RecoveryReport
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.store.messages import Ending, StaleTask
from everbeat.store.moments import moment, moment_or_none
from everbeat.store.transaction import Row, RowRefused, Transaction
from everbeat.store.verbs import classes, flow_ends
from everbeat.store.verbs.living import RAREST_BEAT_MS
from everbeat.store.verbs.queueing import Places
from everbeat.store.verbs.records import Records, add_events
from everbeat.store.verbs.settling import NOW, end_all
from everbeat.store.verbs.turns import hand_over

CLAIM_COLUMNS = """t.seq, t.id, t.name, t.queue, t.fence, t.status, t.attempt, t.free_attempts, t.crash_count,
       t.lost_count, t.dispatch_count, t.solo, t.policy, t.worker_id, t.exclusive_key,
       t.cancel_requested_at IS NOT NULL, t.workflow_id, t.node"""

# everbeat_tasks_owned, one step per owner.
NEXT_OWNER = """
SELECT worker_id FROM everbeat_tasks
 WHERE status IN ('CLAIMED', 'RUNNING') AND worker_id >= ? ORDER BY worker_id LIMIT 1"""

IS_GONE = "SELECT status <> 'alive' FROM everbeat_workers WHERE id = ?"

# everbeat_tasks_owned; entries of one owner stand in the order of seq.
OWNED_BY = f"""
SELECT {CLAIM_COLUMNS} FROM everbeat_tasks t
 WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.worker_id IS ? AND t.seq > ?
 ORDER BY t.worker_id, t.seq LIMIT ?"""

OWNED_IDS = """
SELECT id FROM everbeat_tasks
 WHERE status IN ('CLAIMED', 'RUNNING') AND worker_id = ? ORDER BY worker_id, seq LIMIT ?"""

# The newest come first; one that beats for no task at all costs a look at every row.
BEATEN_FOR = """
SELECT h.task_id FROM everbeat_heartbeats h, everbeat_workers w
 WHERE w.id = ? AND h.sender_id = w.id AND h.sent_at = w.beat_at ORDER BY h.id DESC LIMIT 1"""

# A beat in the future is as good as none: nobody can have written it.
BEATS_EVERY = f"CASE WHEN beat_interval_ms BETWEEN 0 AND {RAREST_BEAT_MS} THEN beat_interval_ms ELSE 0 END"
ALLOWED = f"CASE WHEN :silent < :missed * ({BEATS_EVERY}) THEN :missed * ({BEATS_EVERY}) ELSE :silent END"
SILENT_OWNERS = f"""
SELECT id FROM everbeat_workers
 WHERE status = 'alive'
   AND (clock_id <> :clock_id OR beat_mono < :mono - ({ALLOWED}) OR beat_mono > :mono + ({ALLOWED}))"""

LOCKED = " /*pg: FOR UPDATE */"
"""So that nobody beats between the look and the verdict."""

# everbeat_tasks_owned
COUNT_OWNED = "SELECT count(*) FROM everbeat_tasks WHERE status IN ('CLAIMED', 'RUNNING') AND worker_id IS ?"

# A flush of that worker holds its row until its end.
NO_FLUSH = "SELECT 1 FROM everbeat_workers WHERE id = ? /*pg: FOR UPDATE */"

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

MANY = 1_000_000
"""More than a worker holds."""
NOTHING = ""
"""Sorts before the id of every worker."""


def orphans(tx: Transaction, *, limit: int, after: Claim | None = None) -> list[Claim]:
    """Owned tasks whose owner is dead, stopped, unknown or NULL, in a fixed order; `after` is the last one seen."""
    found: list[Row] = []
    if after is None or after.worker_id is None:
        found = tx.all(OWNED_BY, (None, after.seq if after else 0, limit))
    first = after.worker_id if after and after.worker_id is not None else NOTHING
    for owner in _gone_owners(tx, first):
        if len(found) >= limit:
            break
        seen = after.seq if after and after.worker_id == owner else 0
        found += tx.all(OWNED_BY, (owner, seen, limit - len(found)))
    return [_claim(row) for row in found]


def count_orphans(tx: Transaction) -> int:
    return sum(count_owned(tx, owner) for owner in gone_owners(tx))


def gone_owners(tx: Transaction) -> list[str | None]:
    """Who owns anything and is dead, stopped, unknown or nobody."""
    return [None, *_gone_owners(tx, NOTHING)]


def count_owned(tx: Transaction, worker_id: str | None) -> int:
    row = tx.one(COUNT_OWNED, (worker_id,))
    return row[0] if row else 0


def owned_by(tx: Transaction, worker_id: str, *, limit: int, after: int = 0) -> list[Claim]:
    return [_claim(row) for row in tx.all(OWNED_BY, (worker_id, after, limit))]


def surely_owned_by(tx: Transaction, worker_id: str) -> list[Claim]:
    tx.one(NO_FLUSH, (worker_id,))
    return [_claim(row) for row in tx.all(OWNED_BY, (worker_id, 0, MANY))]


def owned_ids(tx: Transaction, worker_id: str, *, limit: int) -> list[str]:
    return [task_id for (task_id,) in tx.all(OWNED_IDS, (worker_id, limit))]


def beaten_for(tx: Transaction, worker_id: str) -> str | None:
    row = tx.one(BEATEN_FOR, (worker_id,))
    return row[0] if row else None


def recover(
    tx: Transaction, verdicts: Sequence[tuple[Orphan, Verdict]], *, actor: str = RECOVERY_ACTOR
) -> list[Settlement]:
    """One settlement for each, in order."""
    roots = flow_ends.lock(tx, {orphan.claim.workflow_id for orphan, _ in verdicts})
    tx.lock_tasks([orphan.claim.seq for orphan, _ in verdicts])
    alike: dict[tuple[int, TaskStatus, str | None, int], tuple[Verdict, list[Claim]]] = {}
    for orphan, verdict in verdicts:
        claim = orphan.claim
        kind = (id(verdict), claim.status, claim.worker_id, claim.fence)
        alike.setdefault(kind, (verdict, []))[1].append(claim)
    settled = {
        id(claim): settlement
        for verdict, claims in alike.values()
        for claim, settlement in _recover_class(tx, claims, verdict, actor)
    }
    flow_ends.follow(tx, roots, [orphan.claim.seq for orphan, _ in verdicts])
    hand_over(tx, {orphan.claim.exclusive_key for orphan, _ in verdicts})
    Places(tx).offer_in({orphan.claim.queue for orphan, _ in verdicts})
    return [settled[id(orphan.claim)] for orphan, _ in verdicts]


def requeue_silent_claims(tx: Transaction, *, silent_for_us: int, reason: str) -> int:
    """Silence is tested here, in the transaction that acts on it."""
    verdict = Verdict(change=Change.RECOVER, reason=reason, billed=False)
    records = Records(tx)
    claims = [
        _claim(row)
        for owner in _silent_owners(tx, silent_for_us, missed_beats=MISSED_BEATS, more=LOCKED)
        for row in tx.all(CLAIMED_BY, (owner,))
    ]
    roots = flow_ends.lock(tx, {claim.workflow_id for claim in claims})
    tx.lock_tasks([claim.seq for claim in claims])
    made = end_all(tx, [Ending(claim=claim, verdict=verdict) for claim in claims], records, actor=RECOVERY_ACTOR)
    records.write()
    flow_ends.follow(tx, roots, [claim.seq for claim in claims])
    hand_over(tx, {claim.exclusive_key for claim in claims})
    return len(made) - made.count(None)


def stale_tasks(tx: Transaction, status: TaskStatus, *, silent_for_us: int) -> list[StaleTask]:
    """Tasks whose owner has been silent for that long, or is gone. A look: the threshold is the asker's alone."""
    silent = set(_silent_owners(tx, silent_for_us, missed_beats=0))
    owners: list[str | None] = [None]
    owners += [owner for owner in _owners(tx, NOTHING) if owner in silent or _is_gone(tx, owner)]
    return [_stale(row) for owner_id in owners for row in tx.all(STALE, (owner_id, status.value))]


def save_report(tx: Transaction, report: RecoveryReport, *, actor: str) -> RecoveryReport:
    """With its event, so that nobody hears of a recovery whose report is not there."""
    saved = report.ending_at(moment(tx.now))
    tx.run(SAVE_REPORT, (tx.now, actor, saved.to_json()))
    add_events(tx, [Event(name=event.RECOVERY_COMPLETED, facts={"actor": actor, **saved.summary()})])
    return saved


def reports(tx: Transaction, *, limit: int) -> list[RecoveryReport]:
    """The newest first. One that can not be read is passed over: somebody else wrote it."""
    found: list[RecoveryReport] = []
    for (stored,) in tx.all(REPORTS, (limit,)):
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            found.append(RecoveryReport.from_json(stored))
    return found


def _owners(tx: Transaction, first: str) -> Iterator[str]:
    """Who owns anything, in order. They are leapt through, however many tasks each of them has."""
    owner: str | None = first
    while owner is not None and (row := tx.one(NEXT_OWNER, (owner,))):
        yield row[0]
        owner = _following(row[0])


def _gone_owners(tx: Transaction, first: str) -> Iterator[str]:
    return (owner for owner in _owners(tx, first) if _is_gone(tx, owner))


def _following(owner: str | bytes) -> Any:
    """The smallest value after it. Bytes are nobody's id, but somebody may have written them by hand."""
    return owner + (b"\0" if isinstance(owner, bytes) else "\x01")  # type: ignore[operator]


def _is_gone(tx: Transaction, worker_id: str) -> bool:
    gone = tx.one(IS_GONE, (worker_id,))
    return gone is None or bool(gone[0])


def _silent_owners(tx: Transaction, silent_for_us: int, *, missed_beats: float, more: str = "") -> list[str]:
    values = {"clock_id": tx.clock_id, "mono": tx.mono, "silent": silent_for_us, "missed": round(missed_beats * 1000)}
    return [owner for (owner,) in tx.all(SILENT_OWNERS + more, values)]


def _recover_class(
    tx: Transaction, claims: Sequence[Claim], verdict: Verdict, actor: str
) -> Iterator[tuple[Claim, Settlement]]:
    """If one of them can not be written with the others, the class is halved until it stands alone."""
    if len(claims) == 1 or verdict.change not in classes.TOGETHER:
        yield from ((claim, _recover_one(tx, claim, verdict, actor)) for claim in claims)
        return
    try:
        classes.end_together(tx, claims, verdict, actor)
    except (classes.Moved, RowRefused):
        middle = len(claims) // 2
        yield from _recover_class(tx, claims[:middle], verdict, actor)
        yield from _recover_class(tx, claims[middle:], verdict, actor)
    else:
        yield from ((claim, Settled(task_id=claim.id)) for claim in claims)


def _recover_one(tx: Transaction, claim: Claim, verdict: Verdict, actor: str) -> Settlement:
    try:
        with tx.part():
            records = Records(tx)
            (made,) = end_all(tx, [Ending(claim=claim, verdict=verdict)], records, actor=actor)
            records.write()
    except RowRefused as error:
        return Unsettled(task_id=claim.id, error=str(error))
    if made is None:
        return _superseded(tx, claim)
    return Settled(task_id=claim.id, change=made if made is not verdict.change else None)


def _superseded(tx: Transaction, claim: Claim) -> Superseded:
    now = tx.one(NOW, (claim.seq,))
    return Superseded(task_id=claim.id, status=now[0] if now else "DELETED", by=now[1] if now else -1)


def _claim(row: Row) -> Claim:
    return Claim(
        seq=row[0], id=row[1], name=row[2], queue=row[3], fence=row[4], status=classes.STATUSES[row[5]], attempt=row[6],
        free_attempts=row[7], crash_count=row[8], lost_count=row[9], dispatch_count=row[10], solo=bool(row[11]),
        policy=row[12], args=b"", worker_id=row[13], exclusive_key=row[14],
        cancel_requested=bool(row[15]), workflow_id=row[16], node=row[17],
    )  # fmt: skip


def _stale(row: Row) -> StaleTask:
    return StaleTask(
        id=row[0], task_name=row[1], queue=row[2], status=row[3], worker_id=row[4], worker_hostname=row[5],
        worker_pid=row[6], started_at=moment_or_none(row[7]), seq=row[8], fence=row[9],
        last_heartbeat=moment_or_none(max((at for at in (row[7], row[10], row[11]) if at is not None), default=None)),
    )  # fmt: skip
