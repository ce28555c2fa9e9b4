"""Own tasks and let go of them: settle what ended, start what is ready, claim what fits.

Every write here carries the fence, and those of an owner its worker id as well (PROTOCOL 1). The id is that of the
claim: a worker that was declared dead and goes on under a new one may settle what nobody has taken from it yet. What a
superseded owner brings is not stored as the task's outcome: it is adopted if nobody has owned the task since, otherwise
kept beside it and announced (PROTOCOL 29).

Written twice is written once: a flush whose commit got no answer may be sent again (PROTOCOL 7).
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial

from everbeat.decide.measure import RESTART, times
from everbeat.decide.room import OWN_PROCESS, Answer, Room
from everbeat.decide.stop import instead_of_another_run
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import RECOVERY_ACTOR, Adopted, Settled, Settlement, Superseded, Verdict
from everbeat.model.state import OWNED, REVOKES, Change, TaskStatus, sources, target
from everbeat.model.task import Claim, Outcome, TaskPolicy
from everbeat.model.worker import WorkerStatus
from everbeat.store.interface import Ending, Flush, Flushed, Held, Report
from everbeat.store.transaction import Kind, Row, Transaction
from everbeat.store.verbs import flow_args, flow_ends, totals, unsound
from everbeat.store.verbs.living import beat_for_tasks, renew
from everbeat.store.verbs.queueing import LIMITS, Places, has_ready
from everbeat.store.verbs.records import Records, StoredError, add_events, stored_error, text
from everbeat.store.verbs.turns import IN_LINE, hand_over

# Who declares this worker dead waits for the end of the flush.
STANDING = "SELECT status, beat_seq FROM everbeat_workers WHERE id = ? /*pg: FOR KEY SHARE */"

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

# Primary key; a superseded owner says nothing any more.
PROGRESS = """
UPDATE everbeat_tasks SET progress = ?
 WHERE seq = ? AND fence = ? AND worker_id = ? AND status || '' = 'RUNNING'"""

TOLD = {
    Change.RECOVER: event.TASK_RECOVERED,
    Change.ABANDON: event.TASK_RECOVERED,
    Change.FAIL: event.TASK_FAILED,
}
"""The endings that are announced; those by recovery are, whatever they are."""

NOW = """
SELECT status, fence, started_at, attempt, worker_id, cancel_requested_at IS NOT NULL
  FROM everbeat_tasks WHERE seq = ? /*pg: FOR UPDATE */"""

# everbeat_history_task. What an owner's flush wrote when it was sent before.
WRITTEN = """
SELECT 1 FROM everbeat_history WHERE task_id = ? AND fence = ? AND change IN (?, 'cancel') AND actor = ?"""

# everbeat_history_task. What a person took from its owner is to run again: its result is not adopted.
REQUEUED = "SELECT 1 FROM everbeat_history WHERE task_id = ? AND fence = ? AND change = 'requeue'"

# everbeat_history_task
RECOVERED = "SELECT at FROM everbeat_history WHERE task_id = ? AND fence = ? AND change = 'recover'"

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

START = """
UPDATE everbeat_tasks SET status = 'RUNNING', attempt = attempt + 1, started_at = :now
 WHERE seq = :seq AND fence = :fence AND worker_id = :worker_id AND status || '' = 'CLAIMED'
   AND (good_until IS NULL OR good_until > :now)"""

LAUNCH = """
UPDATE everbeat_tasks
   SET status = 'RUNNING', fence = fence + 1, worker_id = ?, counted = ?, attempt = attempt + 1, started_at = ?
 WHERE seq = ? AND fence = ? AND status = 'PENDING'"""

CLAIM = """
UPDATE everbeat_tasks SET status = 'CLAIMED', fence = fence + 1, worker_id = ?, counted = ?
 WHERE seq = ? AND fence = ? AND status = 'PENDING'"""

# everbeat_tasks_due. A bounded bite, so that a million tasks due at once do not hold the write lock.
RIPE = """
SELECT seq, exclusive_key FROM everbeat_tasks WHERE status = 'PENDING' AND due_at IS NOT NULL AND due_at <= ?
 ORDER BY due_at LIMIT 1000 /*pg: FOR UPDATE SKIP LOCKED */"""
# Primary key. (Not one statement with RIPE in it: PostgreSQL may plan it so that RIPE is run again and again.)
RIPEN = f"UPDATE everbeat_tasks SET due_at = NULL, waiting_for = {IN_LINE} WHERE seq IN ({{marks}})"

NEXT_DUE = "SELECT min(due_at) FROM everbeat_tasks WHERE status = 'PENDING' AND due_at IS NOT NULL"

# everbeat_tasks_ready, in claim order, without sorting.
READY = """
SELECT priority, seq, id, name, queue, fence, attempt, free_attempts, crash_count, lost_count, dispatch_count, solo,
       policy, args, good_until, exclusive_key, workflow_id, node, refs
  FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL AND queue = ? AND name = ?"""

PASSES = 100
"""So many tasks of a kind are passed over in one flush, at most: a long row of tasks that must wait for a process of
their own is not walked to its end every time."""


def flush(tx: Transaction, wanted: Flush) -> Flushed:
    _announce(tx, wanted)
    standing = tx.one(STANDING, (wanted.worker_id,))
    if wanted.seen_beat is not None and is_older(standing, wanted.seen_beat):
        tx.undo()
        return Flushed(alive=False, is_older=True)
    roots = lock_workflows(tx, wanted.endings)  # before any task
    lock_tasks(tx, wanted)
    if wanted.reports:
        keep(tx, wanted.worker_id, wanted.reports)  # first: some of them may be ending
    settlements = settle(tx, wanted.endings, roots) if wanted.endings else []
    if wanted.events:
        add_events(tx, wanted.events)
    keys = keys_of_ended(wanted)
    if standing is None or standing[0] != WorkerStatus.ALIVE:
        hand_over(tx, keys)
        return Flushed(alive=False, settlements=settlements)
    started = [claim for claim in wanted.starts if start(tx, wanted.worker_id, claim)]
    due_in_us, ripe_keys = ripen(tx, wanted.room)
    hand_over(tx, keys | ripe_keys)
    places = Places(tx)
    claims = claim_into(tx, wanted.worker_id, wanted.room, places) if wanted.room is not None else []
    flow_args.complete(tx, claims, wanted.endings, settlements)
    places.offer_in({ending.claim.queue for ending in wanted.endings})
    leave_asleep(tx)
    begin_leases(tx, wanted.worker_id, (*started, *claims))
    running = [*started, *(claim for claim in claims if claim.status is TaskStatus.RUNNING)]
    totals.add(tx, times(RESTART, _restarted_after(tx, running)))
    return Flushed(alive=True, settlements=settlements, started=started, claims=claims, next_due_in_us=due_in_us)


def _announce(tx: Transaction, wanted: Flush) -> None:
    """What a flush asks and changes in any case. When the next task is due may be changed by what it settles, unless
    that is results; what is ready also by results, if they are those of nodes."""
    tx.expect((STANDING, (wanted.worker_id,)), (LIMITS, ()))
    if any(ending.verdict.change is not Change.COMPLETE for ending in wanted.endings):
        return
    tx.expect((NEXT_DUE, ()))
    if wanted.reports or wanted.starts:
        return
    of_workflows = list(flow_ends.questions([ending.claim for ending in wanted.endings]))
    tx.expect(*of_workflows)
    tx.expect_many(COMPLETE, _completed(tx, wanted.endings))
    if not of_workflows:
        _foresee(tx, wanted.room)


def _foresee(tx: Transaction, room: Room | None) -> None:
    if room is not None and not room.is_empty:
        tx.foresee(READY, room.queues, _names(room), room.wants)


def is_older(standing: Row | None, seen_beat: int) -> bool:
    """The store knows nothing of a worker, or less than it acknowledged, or nothing that can be read (PROTOCOL 8)."""
    return standing is None or not isinstance(standing[1], int) or standing[1] < seen_beat


def begin_leases(tx: Transaction, worker_id: str, claims: Iterable[Claim]) -> None:
    """A lease begins with the claim or start: whoever waits for its end counts from now."""
    if any(claim.exclusive_key is not None for claim in claims):
        renew(tx, worker_id)


def leave_asleep(tx: Transaction) -> None:
    """Nobody is woken for what this flush made ready and has taken itself."""
    for kind in tuple(tx.wakes):
        sql, values = has_ready(*kind)
        tx.finally_ask(sql, values, partial(_leave_if_none, tx, kind))


def _leave_if_none(tx: Transaction, kind: Kind, found: Row | None) -> None:
    if found is None:
        tx.wakes.discard(kind)


def is_alive(tx: Transaction, worker_id: str) -> bool:
    standing = tx.one(STANDING, (worker_id,))
    return standing is not None and standing[0] == WorkerStatus.ALIVE


def mark_started(started: Iterable[Claim]) -> None:
    """What a start means for the claims in memory. After the commit: one that failed has started nothing."""
    for claim in started:
        claim.status = TaskStatus.RUNNING
        claim.attempt += 1


def keep(tx: Transaction, worker_id: str, reports: Sequence[Report]) -> None:
    said = [(r.progress, r.claim.seq, r.claim.fence, r.claim.worker_id) for r in reports if r.progress is not None]
    tx.many(PROGRESS, said)
    beating = [
        Held(task_id=r.claim.id, fence=r.claim.fence, role="runner", pid=r.pid) for r in reports if r.progress is None
    ]
    beat_for_tasks(tx, worker_id, beating)


# -- letting go -----------------------------------------------------------------------------------------------------


def settle(
    tx: Transaction, endings: Sequence[Ending], roots: flow_ends.Roots, *, row_by_row: bool = False
) -> list[Settlement]:
    """`roots`: those of their workflows, locked. Who settles hands the exclusive keys over. `row_by_row`: a workflow
    that makes no sense does not keep the outcome from being stored."""
    results = [ending for ending in endings if ending.verdict.change is Change.COMPLETE]
    all_stored = tx.many(COMPLETE, _completed(tx, results)) == len(results)
    all_done = all_stored and len(results) == len(endings)
    if all_done:
        settlements: list[Settlement] = [Settled(task_id=ending.claim.id) for ending in endings]
    else:
        records = Records(tx)
        settlements = [_settle_one(tx, ending, records, is_stored=all_stored) for ending in endings]
        records.write()
    if roots and all_done and not row_by_row and None not in [ending.verdict.result for ending in endings]:
        flow_ends.follow_results(tx, roots, [ending.claim for ending in endings])
    elif roots:
        flow_ends.follow(tx, roots, [e.claim.seq for e in endings if e.claim.workflow_id is not None])
    return settlements


def lock_tasks(tx: Transaction, wanted: Flush) -> None:
    """Unless one statement changes all of them, in the same order."""
    claims = [*wanted.starts, *(one.claim for one in wanted.reports), *(one.claim for one in wanted.endings)]
    is_one = not (wanted.reports or wanted.starts) and all(e.verdict.change is Change.COMPLETE for e in wanted.endings)
    if len(claims) > 1 and not is_one:
        tx.lock_tasks({claim.seq for claim in claims})


def _completed(tx: Transaction, results: Sequence[Ending]) -> list[Row]:
    """In the order in which everybody locks them."""
    moment = tx.moment
    return [
        (e.verdict.result, moment, e.claim.seq, e.claim.fence, e.claim.worker_id) for e in sorted(results, key=_seq)
    ]


def _seq(ending: Ending) -> int:
    return ending.claim.seq


def lock_workflows(tx: Transaction, endings: Sequence[Ending]) -> flow_ends.Roots:
    return flow_ends.lock(tx, {ending.claim.workflow_id for ending in endings})


def _settle_one(tx: Transaction, ending: Ending, records: Records, *, is_stored: bool) -> Settlement:
    claim, verdict = ending.claim, ending.verdict
    is_result = verdict.change is Change.COMPLETE
    if not is_result:
        made = end(tx, claim, verdict, records, actor=_actor(verdict, claim), pid=ending.pid)
        if made is not None:
            return Settled(task_id=claim.id, change=made if made is not verdict.change else None)
    elif is_stored:
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


def end(
    tx: Transaction, claim: Claim, verdict: Verdict, records: Records, *, actor: str, pid: int | None = None
) -> Change | None:
    """Write a verdict that is not a result, and add to the records; the change that was made. None: the task had moved,
    nothing was written."""
    if verdict.change not in ENDINGS:
        raise ValueError(f"{verdict.change} does not end an ownership")
    before = tx.one(NOW, (claim.seq,))
    if before is None or before[1] != claim.fence:
        return None
    old, _, started_at, attempt, worker_id, is_cancelled = before
    if is_cancelled:
        verdict = instead_of_another_run(verdict)
    status = target(verdict.change)
    error = stored_error(verdict.error)
    if not tx.run(ENDINGS[verdict.change], ending_values(tx, claim, verdict, error) | {"seq": claim.seq}):
        return None
    if verdict.error is not None and old == TaskStatus.RUNNING:
        records.attempt(
            task_id=claim.id, attempt=attempt, fence=claim.fence, will_retry=not status.is_terminal,
            billed=verdict.billed, started_at=started_at, error=error, worker_id=worker_id, pid=pid,
        )  # fmt: skip
    if verdict.change is not Change.HAND_BACK:
        records.history(
            task_id=claim.id, actor=actor, change=verdict.change, old=old, new=status, reason=verdict.reason,
            attempt=attempt, fence=claim.fence, worker_id=worker_id,
        )  # fmt: skip
    told = event.TASK_RECOVERED if actor == RECOVERY_ACTOR else TOLD.get(verdict.change)
    if told is not None:
        name = event.TASK_QUARANTINED if verdict.quarantined else told
        facts = {"name": claim.name, "attempt": attempt, "action": verdict.action, "reason": verdict.reason,
                 "code": error[0]}  # fmt: skip
        if verdict.change is not Change.FAIL:
            facts["cause"] = verdict.cause.value
        records.event(Event(name=name, task_id=claim.id, worker_id=worker_id, facts=facts))
    return verdict.change


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
            task_id=claim.id, actor=f"worker/{worker_id}", change=Change.ADOPT, old=TaskStatus.PENDING,
            new=TaskStatus.COMPLETED, reason="its result arrived after it was revoked, before anyone ran it again",
            attempt=claim.attempt, fence=fence, worker_id=worker_id,
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


# -- taking hold ----------------------------------------------------------------------------------------------------


def keys_of_ended(wanted: Flush) -> set[str | None]:
    """All keys of a flush are handed over together, in one order: two of them can not wait for each other."""
    return {ending.claim.exclusive_key for ending in wanted.endings}


def ripen(tx: Transaction, room: Room | None) -> tuple[int | None, set[str | None]]:
    """What is due becomes ready, if there is room for something; how long until the next is, and whose keys are to be
    handed over."""
    due_at, keys = _next_due(tx), set[str | None]()
    if due_at is not None and due_at <= tx.now and room is not None and not room.is_empty:
        ripe = tx.all(RIPE, (tx.now,))
        tx.change_among(RIPEN, (), [seq for seq, _ in ripe])
        keys = {key for _, key in ripe}
        due_at = _next_due(tx)
    return None if due_at is None else max(0, due_at - tx.now), keys


def _next_due(tx: Transaction) -> int | None:
    row = tx.one(NEXT_DUE)
    return row[0] if row and isinstance(row[0], int) else None  # who writes by hand can write anything


def _restarted_after(tx: Transaction, claims: Iterable[Claim]) -> Iterator[float]:
    """How long ago those were recovered that run for the first time since: the recovery and the claim each raised the
    fence."""
    for claim in claims:
        row = tx.one(RECOVERED, (claim.id, claim.fence - 2)) if claim.fence > 2 else None
        if row is not None:
            yield (tx.now - row[0]) / 1e6


def start(tx: Transaction, worker_id: str, claim: Claim) -> bool:
    if tx.run(START, {"now": tx.now, "seq": claim.seq, "fence": claim.fence, "worker_id": worker_id}):
        return True
    now = tx.one(NOW, (claim.seq,))  # or by this flush, when it was sent before
    return now is not None and (now[0], now[1], now[4]) == (TaskStatus.RUNNING, claim.fence, worker_id)


def claim_into(tx: Transaction, worker_id: str, room: Room, places: Places) -> list[Claim]:
    _foresee(tx, room)
    claims = [] if room.is_empty else find(tx, worker_id, room, places)
    take(tx, claims)
    return claims


def find(tx: Transaction, worker_id: str, room: Room, places: Places) -> list[Claim]:
    """What the room takes, not claimed yet."""
    flawed: list[Row] = []
    found = [
        claim_of(row, slot, worker_id, counted=places.is_limited(row[4]))
        for row, slot in admitted(tx, room, places, flawed)
    ]
    if flawed:
        unsound.set_aside(tx, flawed)
    return found


def take(tx: Transaction, claims: Sequence[Claim]) -> None:
    waiting = [(c.worker_id, int(c.counted), c.seq, c.fence - 1) for c in claims if c.status is TaskStatus.CLAIMED]
    ready = [
        (c.worker_id, int(c.counted), tx.now, c.seq, c.fence - 1) for c in claims if c.status is TaskStatus.RUNNING
    ]
    tx.finally_many(CLAIM, waiting)
    tx.finally_many(LAUNCH, ready)


def claim_of(row: Row, slot: int, worker_id: str, *, counted: bool) -> Claim:
    launched = slot != OWN_PROCESS
    solo, timeout, key = bool(row[11]), TaskPolicy.load(row[12]).timeout, row[15]
    return Claim(
        seq=row[1], id=row[2], name=row[3], queue=row[4], fence=row[5] + 1, attempt=row[6] + launched,
        free_attempts=row[7], crash_count=row[8], lost_count=row[9], dispatch_count=row[10], solo=solo,
        policy=row[12], args=row[13], worker_id=worker_id, slot=slot, timeout=timeout,
        alone=solo or timeout is not None or key is not None, counted=counted, exclusive_key=key,
        workflow_id=row[16], node=row[17], refs=row[18],
        status=TaskStatus.RUNNING if launched else TaskStatus.CLAIMED,
    )  # fmt: skip


def admitted(tx: Transaction, room: Room, places: Places, flawed: list[Row]) -> Iterator[tuple[Row, int]]:
    """Ready tasks in claim order over all kinds, as far as the room admits them and their queues have places. Rows that
    make no sense are not among them, but in `flawed`."""
    served = list(_kinds(tx, room, places))
    kinds = [unsound.sound(tx, tx.ahead(READY, kind, room.wants(kind[1])), flawed) for kind in served]
    passes = [PASSES] * len(kinds)
    heads = [(row, kind) for kind in range(len(kinds)) if (row := next(kinds[kind], None))]
    heapq.heapify(heads)
    while heads:
        row, kind = heads[0]
        answer, slot = _offer(room, row, tx.now) if places.are_left(row[4]) else (Answer.FULL, OWN_PROCESS)
        if answer is Answer.TAKE:
            places.take(row[4])
            yield row, slot
        elif answer is Answer.PASS:
            passes[kind] -= 1
        if room.is_empty:
            return
        goes_on = answer is not Answer.FULL and passes[kind] and room.serves(row[4], row[3])
        following = next(kinds[kind], None) if goes_on else None
        if following is None:
            heapq.heappop(heads)
            if goes_on and passes[kind] == PASSES and not flawed:
                tx.wakes.discard(served[kind])  # all of it is taken
        else:
            heapq.heapreplace(heads, (following, kind))


def _offer(room: Room, row: Row, now: int) -> tuple[Answer, int]:
    if row[14] is not None and row[14] <= now:  # past its time: not started, though nobody has ended it yet
        return Answer.PASS, OWN_PROCESS
    if row[16] in room.shunned:
        return Answer.PASS, OWN_PROCESS
    policy = TaskPolicy.load(row[12])
    must_be_solo = bool(row[11]) or row[15] is not None  # killed for its lease, it must take nobody with it
    return room.offer(row[3], solo=must_be_solo, alone=policy.timeout is not None, isolated=policy.isolated)


def _kinds(tx: Transaction, room: Room, places: Places) -> Iterator[tuple[str, str]]:
    """The (queue, name) pairs that have ready tasks and that the room serves, in one order for everybody: the limits of
    two queues are locked in it."""
    return (kind for kind in tx.kinds(room.queues, _names(room)) if room.serves(*kind) and places.are_left(kind[0]))


def _names(room: Room) -> list[str]:
    return _in_order(room.sync_names, room.async_names)


@lru_cache(maxsize=16)
def _in_order(sync_names: frozenset[str], async_names: frozenset[str]) -> list[str]:
    return sorted(sync_names | async_names)
