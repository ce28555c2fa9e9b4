"""Orphans that differ in nothing the decision asks for, written together (PROTOCOL 39).

One statement ends their ownerships, one each adds to history, attempts and events (PostgreSQL makes one of the four):
a million of them take seconds, and no row of them ever comes out of the database. The guard is that of every verdict:
fence, owner and state are tested in the write. If one of a class has moved, the whole class is undone and its caller
goes through it task by task.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everbeat.decide.measure import totals_of
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import OrphanClass, Verdict
from everbeat.model.state import Change, TaskStatus, target
from everbeat.model.task import Claim
from everbeat.store.transaction import Row, RowRefused, Transaction
from everbeat.store.verbs import totals
from everbeat.store.verbs.records import WANTED, stored_error, text
from everbeat.store.verbs.settling import ENDING_WHERE, ending_values

TOGETHER = (Change.RECOVER, Change.ABANDON)
"""What can be written so. The other ends of an ownership are rare."""

CLASS = """status, fence, attempt, free_attempts, crash_count, lost_count, dispatch_count, solo, policy"""

# everbeat_tasks_owned; entries of one owner stand in the order of seq. Whoever holds a turn, is to be cancelled
# or is part of a workflow is seen to alone.
CLASSES = f"""
SELECT {CLASS}, count(*), max(seq), json_group_array(seq)
  FROM (SELECT seq, {CLASS} FROM everbeat_tasks
         WHERE status IN ('CLAIMED', 'RUNNING') AND worker_id IS ? AND seq > ? AND exclusive_key IS NULL
           AND cancel_requested_at IS NULL AND workflow_id IS NULL
         ORDER BY worker_id, seq LIMIT ?) AS few
 GROUP BY {CLASS}"""

UNCANCELLED = " AND cancel_requested_at IS NULL"
"""One whose end was asked for after it was read is another class, and ends otherwise."""

# Primary key: which tasks, beside what ENDING_WHERE asks. Owner and state are compared as expressions, so that nobody
# goes through everbeat_tasks_owned instead. All of a class have one state, so it is not asked of each of them.
AMONG = " AND status || '' = :was AND seq IN (SELECT value FROM json_each(:seqs))"
KEPT = " /*pg: RETURNING id, name, attempt, started_at */"
"""What the records are made of: none of these is changed."""
END = {change: ENDING_WHERE[change] + UNCANCELLED + AMONG + KEPT for change in TOGETHER}

ADD_HISTORY = """
INSERT INTO everbeat_history (task_id, at, actor, change, old_status, new_status, reason, attempt, fence, worker_id)
SELECT id, :now, :actor, :change, :was, :status, :reason, attempt, :fence, :worker_id FROM changed"""

ADD_ATTEMPTS = """
INSERT INTO everbeat_attempts (task_id, attempt, fence, outcome, will_retry, billed, started_at, finished_at,
                               error_code, error_message, error, worker_id, hostname)
SELECT id, attempt, :fence, :error_code, :will_retry, :billed, started_at, :now, :error_code, :error_message, :error,
       :worker_id, (SELECT hostname FROM everbeat_workers WHERE id = :worker_id) FROM changed"""

ADD_EVENTS = f"""
INSERT INTO everbeat_events (at, name, task_id, worker_id, facts, wanted)
SELECT :now, :event, id, :worker_id,
       CAST(json_object('name', CAST(name AS TEXT), 'attempt', CAST(attempt AS BIGINT), 'action', CAST(:action AS TEXT),
                        'reason', CAST(:reason AS TEXT), 'code', CAST(:error_code AS TEXT),
                        'cause', CAST(:cause AS TEXT)) AS TEXT), {WANTED.format(name=":event")} FROM changed"""

STATUSES = {status.value: status for status in TaskStatus}


class Moved(Exception):
    """Not all of a class are as they were when it was decided about. Nothing was written."""


def classes_of(tx: Transaction, owner: str | None, *, after: int, limit: int) -> list[OrphanClass]:
    """The next so many tasks of one owner, by class."""
    return [_class(row, owner) for row in tx.all(CLASSES, (owner, after, limit))]


def end_together(tx: Transaction, claims: Sequence[Claim], verdict: Verdict, actor: str) -> None:
    """Of one class, state, fence and owner. RowRefused or Moved: nothing was written."""
    few = OrphanClass(claim=claims[0], count=len(claims), last=0, seqs=json.dumps([claim.seq for claim in claims]))
    end_class(tx, few, verdict, actor)
    tx.events += [_event(claim, verdict) for claim in claims]


def end_class(tx: Transaction, orphans: OrphanClass, verdict: Verdict, actor: str) -> None:
    """RowRefused or Moved: nothing was written. All are stored as events, and nobody is told here: who reads a million
    lines?"""
    status, error = target(verdict.change), stored_error(verdict.error)
    values = ending_values(tx, orphans.claim, verdict, error) | {
        "seqs": orphans.seqs,
        "was": orphans.claim.status.value,
        "now": tx.now,
        "actor": text(actor),
        "change": verdict.change.value,
        "reason": text(verdict.reason),
        "will_retry": int(not status.is_terminal),
        "billed": int(verdict.billed),
        "event": _name(verdict),
        "action": verdict.action,
        "cause": verdict.cause.value,
    }
    has_run = verdict.error is not None and orphans.claim.status is TaskStatus.RUNNING
    records = [ADD_HISTORY, *([ADD_ATTEMPTS] if has_run else []), ADD_EVENTS]
    with tx.part():
        if tx.change_and_record(END[verdict.change], records, values) != orphans.count:
            raise Moved
        totals.add(
            tx,
            [replace(one, value=one.value * orphans.count) for one in totals_of([_event(orphans.claim, verdict)])],
        )


def try_class(tx: Transaction, orphans: OrphanClass, verdict: Verdict, actor: str) -> bool:
    """False: nothing was written; its tasks are to be seen to one by one."""
    try:
        end_class(tx, orphans, verdict, actor)
    except (Moved, RowRefused):
        return False
    return True


def _event(claim: Claim, verdict: Verdict) -> Event:
    """As ADD_EVENTS stores it."""
    facts: dict[str, Any] = {
        "name": claim.name,
        "attempt": claim.attempt,
        "action": verdict.action,
        "reason": verdict.reason,
        "code": verdict.error.code if verdict.error else None,
        "cause": verdict.cause.value,
    }
    return Event(name=_name(verdict), task_id=claim.id, worker_id=claim.worker_id, facts=facts)


def _name(verdict: Verdict) -> str:
    return event.TASK_QUARANTINED if verdict.quarantined else event.TASK_RECOVERED


def _class(row: Row, owner: str | None) -> OrphanClass:
    claim = Claim(
        seq=0, id="", name="", queue="", status=STATUSES[row[0]], fence=row[1], attempt=row[2], free_attempts=row[3],
        crash_count=row[4], lost_count=row[5], dispatch_count=row[6], solo=bool(row[7]), policy=row[8], args=b"",
        worker_id=owner,
    )  # fmt: skip
    return OrphanClass(claim=claim, count=row[9], last=row[10], seqs=row[11])
