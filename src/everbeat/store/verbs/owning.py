"""Own tasks: in one transaction settle what ended (settling.py), start what is ready and claim what fits (claiming.py).

Every write of these carries the fence, and those of an owner its worker id as well (PROTOCOL 1). The id is that of the
claim: a worker that was declared dead and goes on under a new one may settle what nobody has taken from it yet.

Written twice is written once: a flush whose commit got no answer may be sent again (PROTOCOL 7).
"""

from collections.abc import Iterable, Sequence
from functools import partial

from everbeat.decide.measure import RESTART, times
from everbeat.model.recovery import Settlement
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import WorkerStatus
from everbeat.store.messages import Flush, Flushed, Held, Report, are_results
from everbeat.store.transaction import Kind, Row, Transaction
from everbeat.store.verbs import claiming, flow_args, flow_ends, settling, totals
from everbeat.store.verbs.living import beat_for_tasks
from everbeat.store.verbs.queueing import LIMITS, Places, has_ready
from everbeat.store.verbs.records import add_events
from everbeat.store.verbs.turns import hand_over

# Who declares this worker dead waits for the end of the flush.
STANDING = "SELECT status, beat_seq FROM everbeat_workers WHERE id = ? /*pg: FOR KEY SHARE */"

# Primary key; a superseded owner says nothing any more.
PROGRESS = """
UPDATE everbeat_tasks SET progress = ?
 WHERE seq = ? AND fence = ? AND worker_id = ? AND status || '' = 'RUNNING'"""


def flush(tx: Transaction, wanted: Flush) -> Flushed:
    _announce(tx, wanted)
    standing = tx.one(STANDING, (wanted.worker_id,))
    if knows_less(standing, wanted):
        tx.undo()
        return Flushed(alive=False, is_older=True)
    roots = settling.lock_workflows(tx, wanted.endings)  # before any task
    lock_tasks(tx, wanted)
    if wanted.reports:
        keep(tx, wanted.worker_id, wanted.reports)  # first: some of them may be ending
    settlements = settling.settle(tx, wanted.endings, roots) if wanted.endings else []
    if wanted.events:
        add_events(tx, wanted.events)
    keys = settling.keys_of_ended(wanted)
    if not is_alive(standing):
        hand_over(tx, keys)
        return Flushed(alive=False, settlements=settlements)
    started = [claim for claim in wanted.starts if claiming.start(tx, wanted.worker_id, claim)]
    due_in_us, ripe_keys = claiming.ripen(tx, wanted.room)
    hand_over(tx, keys | ripe_keys)
    places = Places(tx)
    claims = claiming.claim_into(tx, wanted.worker_id, wanted.room, places) if wanted.room is not None else []
    conclude(tx, wanted, settlements, started, claims, places)
    return Flushed(alive=True, settlements=settlements, started=started, claims=claims, next_due_in_us=due_in_us)


def conclude(
    tx: Transaction, wanted: Flush, settlements: Sequence[Settlement], started: Sequence[Claim],
    claims: Sequence[Claim], places: Places,
) -> None:  # fmt: skip
    """What follows from a flush that has settled, started and claimed these."""
    flow_args.complete(tx, claims, wanted.endings, settlements)
    places.offer_in({ending.claim.queue for ending in wanted.endings})
    _leave_asleep(tx)
    claiming.begin_leases(tx, wanted.worker_id, (*started, *claims))
    running = [*started, *(claim for claim in claims if claim.status is TaskStatus.RUNNING)]
    totals.add(tx, times(RESTART, claiming.restarted_after(tx, running)))


def _announce(tx: Transaction, wanted: Flush) -> None:
    """Announce what a flush asks and changes in any case. If it settles only results, the next due task can be asked
    for beforehand; what is ready only if these are not results of nodes, which may make others ready."""
    if not tx.is_far:
        return
    tx.expect((STANDING, (wanted.worker_id,)), (LIMITS, ()))
    if not are_results(wanted.endings):
        return
    tx.expect((claiming.NEXT_DUE, ()))
    if wanted.reports or wanted.starts:
        return
    is_open = flow_ends.announce(tx, [ending.claim for ending in wanted.endings])
    tx.expect_many(settling.COMPLETE, settling.completed(tx, wanted.endings))
    if not is_open:
        claiming.foresee(tx, wanted.room)


def lock_tasks(tx: Transaction, wanted: Flush) -> None:
    """Unless one statement changes all of them, in the same order."""
    if not (wanted.reports or wanted.starts) and are_results(wanted.endings):
        return
    claims = [*wanted.starts, *(one.claim for one in wanted.reports), *(one.claim for one in wanted.endings)]
    if len(claims) > 1:
        tx.lock_tasks({claim.seq for claim in claims})


def knows_less(standing: Row | None, wanted: Flush) -> bool:
    """The store is older than this flush: nothing of it may be written."""
    return wanted.seen_beat is not None and is_older(standing, wanted.seen_beat)


def is_older(standing: Row | None, seen_beat: int) -> bool:
    """The store knows nothing of a worker, or less than it acknowledged, or nothing that can be read (PROTOCOL 8)."""
    return standing is None or not isinstance(standing[1], int) or standing[1] < seen_beat


def _leave_asleep(tx: Transaction) -> None:
    """Nobody is woken for what this flush made ready and has taken itself."""
    for kind in tuple(tx.wakes):
        sql, values = has_ready(*kind)
        tx.finally_ask(sql, values, partial(_leave_if_none, tx, kind))


def _leave_if_none(tx: Transaction, kind: Kind, found: Row | None) -> None:
    if found is None:
        tx.wakes.discard(kind)


def is_alive(standing: Row | None) -> bool:
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
