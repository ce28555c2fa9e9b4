"""Let go of tasks: settle what ended.

What a superseded owner brings is not stored as the task's outcome: it is adopted if nobody has owned the task since,
otherwise kept beside it and announced (PROTOCOL 29).
"""

from collections.abc import Sequence
from operator import attrgetter

from everbeat.decide.stop import instead_of_another_run
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import RECOVERY_ACTOR, Adopted, AllStored, Settled, Settlement, Superseded, Verdict
from everbeat.model.state import OWNED, REVOKES, Change, TaskStatus, sources, target
from everbeat.model.task import Claim, Outcome
from everbeat.store.messages import Ending, Flush, are_results
from everbeat.store.transaction import Columns, Row, Transaction
from everbeat.store.verbs import flow_ends
from everbeat.store.verbs.records import Records, StoredError, stored_error, text
from everbeat.store.verbs.turns import IN_LINE

seq_of = attrgetter("claim.seq")

# The moment of a transaction that has not heard from the database yet.
MOMENT = "/*pg: coalesce( */?/*pg: , (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) */"

# Fast path of `end`: most runs end in a result. Primary key; refuses a superseded owner.
COMPLETE = f"""
UPDATE everbeat_tasks
   SET status = 'COMPLETED', result = ?, finished_at = {MOMENT}, error_code = NULL, error_message = NULL, error = NULL
 WHERE seq = ? AND fence = ? AND worker_id = ? AND status || '' = 'RUNNING'"""

# The end of any ownership without a result. Primary key; refuses if the task moved. An unbilled run is counted as free
# only where it was counted as a run; one that no process has seen was none. What was said of an earlier run stays until
# there is something newer to say.
ENDED = f"""
UPDATE everbeat_tasks
   SET status = :status, fence = fence + :revoke, finished_at = :finished_at, due_at = :due_at,
       waiting_for = CASE WHEN CAST(:finished_at AS BIGINT) IS NULL AND CAST(:due_at AS BIGINT) IS NULL
                          THEN {IN_LINE} END,
       run_at = coalesce(:due_at, run_at),
       worker_id = CASE WHEN CAST(:finished_at AS BIGINT) IS NULL THEN NULL ELSE worker_id END,
       attempt = attempt - CASE WHEN status = 'RUNNING' AND attempt > 0 THEN :unseen ELSE 0 END,
       free_attempts = free_attempts + CASE WHEN status = 'RUNNING' THEN :free ELSE 0 END,
       crash_count = crash_count + :crashes, lost_count = lost_count + :losses,
       dispatch_count = dispatch_count + :dispatches, solo = CASE WHEN solo > :solo THEN solo ELSE :solo END,
       quarantined = :quarantined,
       error_code = coalesce(:error_code, error_code), error_message = coalesce(:error_message, error_message),
       error = coalesce(:error, error),
       progress = CASE WHEN CAST(:finished_at AS BIGINT) IS NULL THEN NULL ELSE progress END
 WHERE fence = :fence AND coalesce(worker_id, '') = coalesce(:worker_id, '') AND status || '' IN ({{sources}})"""

ENDING_WHERE = {
    change: ENDED.format(sources=", ".join(f"'{state}'" for state in sorted(OWNED.intersection(sources(change)))))
    for change in (Change.FAIL, Change.RETRY, Change.HAND_BACK, Change.RECOVER, Change.ABANDON, Change.CANCEL)
}
"""One statement per change, each with the states that TRANSITIONS lets it start from; which tasks is to be added."""

ENDINGS = {change: statement + " AND seq = :seq" for change, statement in ENDING_WHERE.items()}
ENDS_FROM = {change: OWNED.intersection(sources(change)) for change in ENDINGS}

TOLD = {
    Change.RECOVER: event.TASK_RECOVERED,
    Change.ABANDON: event.TASK_RECOVERED,
    Change.FAIL: event.TASK_FAILED,
}
"""The endings that are announced; those by recovery are, whatever they are."""

NOW = """
SELECT status, fence, started_at, attempt, worker_id, cancel_requested_at IS NOT NULL
  FROM everbeat_tasks WHERE seq = ? /*pg: FOR UPDATE */"""

# Primary key, in the order in which everybody locks them.
EACH_NOW = """
SELECT seq, status, fence, started_at, attempt, worker_id, cancel_requested_at IS NOT NULL
  FROM everbeat_tasks WHERE seq IN ({marks}) ORDER BY seq /*pg: FOR UPDATE */"""

# everbeat_history_task. What an owner's flush wrote when it was sent before.
WRITTEN = """
SELECT 1 FROM everbeat_history WHERE task_id = ? AND fence = ? AND change IN (?, 'cancel') AND actor = ?"""

# everbeat_history_task. What a person took from its owner is to run again: its result is not adopted.
REQUEUED = "SELECT 1 FROM everbeat_history WHERE task_id = ? AND fence = ? AND change = 'requeue'"

# A result whose owner was revoked while nobody claimed the task since: its fence is exactly one ahead.
ADOPT = """
UPDATE everbeat_tasks
   SET status = 'COMPLETED', fence = fence + 1, result = ?, finished_at = ?, due_at = NULL, waiting_for = NULL,
       worker_id = ?, error_code = NULL, error_message = NULL, error = NULL
 WHERE seq = ? AND fence = ? AND status = 'PENDING'"""

# everbeat_history_task. The same flush brought it before, and it was adopted.
ADOPTED = "SELECT 1 FROM everbeat_history WHERE task_id = ? AND fence = ? AND change = 'adopt' AND actor = ?"

# everbeat_late_outcomes_task. The same flush brought it before, and it was refused.
KEPT = "SELECT 1 FROM everbeat_late_outcomes WHERE task_id = ? AND fence = ? AND worker_id = ?"

KEEP_LATE = """
INSERT INTO everbeat_late_outcomes (task_id, fence, attempt, worker_id, at, found_status, found_fence, result,
                                    error_code, error_message)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def settle(
    tx: Transaction, endings: Sequence[Ending], roots: flow_ends.Roots, *, row_by_row: bool = False
) -> Sequence[Settlement]:
    """`roots`: of their workflows, which are locked. The caller hands over exclusive keys. `row_by_row`: the outcome is
    stored even if the workflow of the task makes no sense."""
    all_results = are_results(endings)
    results = endings if all_results else [e for e in endings if e.verdict.change is Change.COMPLETE]
    all_stored = tx.many(COMPLETE, completed(tx, results)) == len(results)
    all_done = all_stored and all_results
    settlements: Sequence[Settlement]
    if all_done:
        settlements = AllStored([ending.claim.id for ending in endings])
    else:
        records = Records(tx)
        others = [ending for ending in endings if ending.verdict.change is not Change.COMPLETE]
        made = dict(zip(map(id, others), end_all(tx, others, records), strict=True))
        settlements = [
            _settle_one(tx, ending, records, made=made.get(id(ending)), is_stored=all_stored) for ending in endings
        ]
        records.write()
    if roots and all_done and not row_by_row and None not in [ending.verdict.result for ending in endings]:
        flow_ends.follow_results(tx, roots, [ending.claim for ending in endings])
    elif roots:
        flow_ends.follow(tx, roots, [e.claim.seq for e in endings if e.claim.workflow_id is not None])
    return settlements


def completed(tx: Transaction, results: Sequence[Ending]) -> Sequence[Row]:
    """In the order in which everybody locks them."""
    ended = sorted(results, key=seq_of)
    claims = [ending.claim for ending in ended]
    return Columns(
        [ending.verdict.result for ending in ended], [tx.moment] * len(ended), [claim.seq for claim in claims],
        [claim.fence for claim in claims], [claim.worker_id for claim in claims],
    )  # fmt: skip


def lock_workflows(tx: Transaction, endings: Sequence[Ending]) -> flow_ends.Roots:
    return flow_ends.lock(tx, {ending.claim.workflow_id for ending in endings})


def keys_of_ended(wanted: Flush) -> set[str | None]:
    """All keys of a flush are handed over together, in one order: two of them can not wait for each other."""
    return {ending.claim.exclusive_key for ending in wanted.endings}


def _settle_one(
    tx: Transaction, ending: Ending, records: Records, *, made: Change | None, is_stored: bool
) -> Settlement:
    """`made`: what was written for an ending without a result, None if its task had moved. `is_stored`: all results of
    this flush were."""
    claim, verdict = ending.claim, ending.verdict
    is_result = verdict.change is Change.COMPLETE
    if made is not None:
        return Settled(task_id=claim.id, change=made if made is not verdict.change else None)
    if is_result and is_stored:
        return Settled(task_id=claim.id)
    found = tx.one(NOW, (claim.seq,))
    status, fence = (found[0], found[1]) if found else ("DELETED", -1)
    is_terminal = (status, fence) == (target(verdict.change), claim.fence)
    if is_terminal or tx.one(WRITTEN, (claim.id, claim.fence, verdict.change.value, _actor(verdict, claim))):
        return Settled(task_id=claim.id)  # by this flush, when it was sent before
    outcome = ending.outcome
    if outcome is None and is_result:
        outcome = Outcome(result=verdict.result, began_at=tx.now, ended_at=tx.now)
    return _late(tx, claim, outcome, records, status, fence)


def _actor(verdict: Verdict, claim: Claim) -> str:
    return RECOVERY_ACTOR if verdict.change in (Change.RECOVER, Change.ABANDON) else f"worker/{claim.worker_id}"


def end_all(
    tx: Transaction, endings: Sequence[Ending], records: Records, *, actor: str | None = None
) -> list[Change | None]:
    """Write verdicts that are not results, and add to the records; the change that was made of each. None: its task had
    moved, nothing was written. `actor`: whose verdicts they are, if not each one's own."""
    for ending in endings:
        if ending.verdict.change not in ENDINGS:
            raise ValueError(f"{ending.verdict.change} does not end an ownership")
    found = {row[0]: row[1:] for row in tx.among(EACH_NOW, (), [ending.claim.seq for ending in endings])}
    rows: dict[Change, list[dict[str, object]]] = {}
    made: list[Change | None] = []
    for ending in endings:
        claim, verdict, now = ending.claim, ending.verdict, found.get(ending.claim.seq)
        if now is not None and now[5]:
            verdict = instead_of_another_run(verdict)
        if now is None or not _is_as_claimed(now, claim) or now[0] not in ENDS_FROM[verdict.change]:
            made.append(None)
            continue
        error = stored_error(verdict.error)
        values = ending_values(tx, claim, verdict, error) | {"seq": claim.seq}
        rows.setdefault(verdict.change, []).append(values)
        _record(records, ending, verdict, error, now, actor or _actor(ending.verdict, claim))
        made.append(verdict.change)
    for change, alike in rows.items():
        tx.soon(ENDINGS[change], alike, all_of_them=True)
    return made


def _is_as_claimed(now: Row, claim: Claim) -> bool:
    return now[1] == claim.fence and (now[4] or "") == (claim.worker_id or "")


def _record(records: Records, ending: Ending, verdict: Verdict, error: StoredError, now: Row, actor: str) -> None:
    """`now`: the row as it was found."""
    claim, status = ending.claim, target(verdict.change)
    old, _, started_at, attempt, worker_id, _ = now
    if verdict.error is not None and old == TaskStatus.RUNNING:
        records.attempt(
            task_id=claim.id, attempt=attempt, fence=claim.fence, will_retry=not status.is_terminal,
            billed=verdict.billed, started_at=started_at, error=error, worker_id=worker_id, pid=ending.pid,
        )  # fmt: skip
    if verdict.change is not Change.HAND_BACK:
        records.history(
            task_id=claim.id, actor=actor, change=verdict.change, old=old, reason=verdict.reason, attempt=attempt,
            fence=claim.fence, worker_id=worker_id,
        )  # fmt: skip
    told = event.TASK_RECOVERED if actor == RECOVERY_ACTOR else TOLD.get(verdict.change)
    if told is not None:
        name = event.TASK_QUARANTINED if verdict.quarantined else told
        facts = {"name": claim.name, "attempt": attempt, "action": verdict.action, "reason": verdict.reason,
                 "code": error[0]}  # fmt: skip
        if verdict.change is not Change.FAIL:
            facts["cause"] = verdict.cause.value
        records.event(Event(name=name, task_id=claim.id, worker_id=worker_id, facts=facts))


def ending_values(tx: Transaction, claim: Claim, verdict: Verdict, error: StoredError) -> dict[str, object]:
    """For ENDING_WHERE, but not which tasks."""
    status = target(verdict.change)
    return {
        "status": status.value,
        "revoke": int(verdict.change in REVOKES),
        "finished_at": tx.now if status.is_terminal else None,
        "due_at": tx.now + verdict.delay_us if verdict.delay_us and not status.is_terminal else None,
        "unseen": int(verdict.change is Change.HAND_BACK),
        "free": int(not verdict.billed and verdict.change is not Change.HAND_BACK),
        "crashes": verdict.crashes,
        "losses": verdict.losses,
        "dispatches": verdict.dispatches,
        "solo": int(verdict.solo),
        "quarantined": int(verdict.quarantined),
        "error_code": error[0],
        "error_message": error[1],
        "error": error[2],
        "fence": claim.fence,
        "worker_id": claim.worker_id,
    }


def _late(
    tx: Transaction, claim: Claim, outcome: Outcome | None, records: Records, status: str, fence: int
) -> Settlement:
    """The ownership had ended before its outcome arrived."""
    if outcome is None:
        return Superseded(task_id=claim.id, status=status, by=fence)
    worker_id = claim.worker_id
    if tx.one(ADOPTED, (claim.id, claim.fence + 1, f"worker/{worker_id}")):
        return Adopted(task_id=claim.id)
    if tx.one(KEPT, (claim.id, claim.fence, worker_id or "")):
        return Superseded(task_id=claim.id, status=status, by=fence)
    facts = {"name": claim.name, "fence": claim.fence, "attempt": claim.attempt, "found": status, "found_fence": fence}
    is_free = (status, fence) == (TaskStatus.PENDING, claim.fence + 1)
    if outcome.error is None and is_free and not tx.one(REQUEUED, (claim.id, claim.fence)):
        tx.run(ADOPT, (outcome.result, tx.now, worker_id, claim.seq, fence))
        records.history(
            task_id=claim.id, actor=f"worker/{worker_id}", change=Change.ADOPT, attempt=claim.attempt, fence=fence,
            reason="its result arrived after it was revoked, before anyone ran it again", worker_id=worker_id,
        )  # fmt: skip
        records.event(Event(name=event.OUTCOME_ADOPTED, task_id=claim.id, worker_id=worker_id, facts=facts))
        return Adopted(task_id=claim.id)
    error = outcome.error
    tx.run(
        KEEP_LATE,
        (claim.id, claim.fence, claim.attempt, worker_id or "", tx.now, status, fence, outcome.result,
         text(error.code) if error else None, text(error.message) if error else None),
    )  # fmt: skip
    records.event(Event(name=event.OUTCOME_REFUSED, task_id=claim.id, worker_id=worker_id, facts=facts))
    return Superseded(task_id=claim.id, status=status, by=fence)
