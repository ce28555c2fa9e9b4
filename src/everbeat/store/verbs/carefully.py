"""The flush, row by row: after one that was refused for a definite reason, so that a bad row harms nobody else.

Each row is a part of its own in one transaction (PROTOCOL 7). What is refused is undone alone and told: an ending as
`Unsettled`, and all of it in `Flushed.refused`.
"""

from collections.abc import Collection

from everbeat.model.recovery import Settlement, Unsettled
from everbeat.model.task import Claim
from everbeat.store.messages import Ending, Flush, Flushed, Refused
from everbeat.store.transaction import RowRefused, Transaction
from everbeat.store.verbs import claiming, owning, settling
from everbeat.store.verbs.flow_ends import Roots
from everbeat.store.verbs.queueing import Places
from everbeat.store.verbs.records import add_events
from everbeat.store.verbs.turns import hand_over


def flush(tx: Transaction, wanted: Flush) -> Flushed:
    standing = tx.one(owning.STANDING, (wanted.worker_id,))
    if owning.knows_less(standing, wanted):
        return Flushed(alive=False, is_older=True)
    refused: list[Refused] = []
    roots = settling.lock_workflows(tx, wanted.endings)
    owning.lock_tasks(tx, wanted)
    for report in wanted.reports:
        try:
            with tx.part():
                owning.keep(tx, wanted.worker_id, [report])
        except RowRefused as error:
            refused.append(Refused(task_id=report.claim.id, error=f"progress: {error}"))
    settlements = [_settle(tx, ending, roots, refused) for ending in wanted.endings]
    for event in wanted.events:
        try:
            with tx.part():
                add_events(tx, [event])
        except RowRefused as error:
            refused.append(Refused(task_id=event.task_id, error=f"event {event.name}: {error}"))
    keys = settling.keys_of_ended(wanted)
    if not owning.is_alive(standing):
        _hand_over(tx, keys, refused)
        return Flushed(alive=False, settlements=settlements, refused=refused)
    started = [claim for claim in wanted.starts if _start(tx, wanted.worker_id, claim, refused)]
    due_in_us, ripe_keys = claiming.ripen(tx, wanted.room)
    _hand_over(tx, keys | ripe_keys, refused)
    places = Places(tx)
    found = claiming.find(tx, wanted.worker_id, wanted.room, places) if wanted.room is not None else []
    claims = [claim for claim in found if _take(tx, claim, refused)]
    owning.conclude(tx, wanted, settlements, started, claims, places)
    return Flushed(
        alive=True,
        settlements=settlements,
        started=started,
        claims=claims,
        next_due_in_us=due_in_us,
        refused=refused,
    )


def _settle(tx: Transaction, ending: Ending, roots: Roots, refused: list[Refused]) -> Settlement:
    try:
        with tx.part():
            return settling.settle(tx, [ending], roots, row_by_row=True)[0]
    except RowRefused as error:
        refused.append(Refused(task_id=ending.claim.id, error=f"{ending.verdict.change}: {error}"))
        return Unsettled(task_id=ending.claim.id, error=str(error))


def _hand_over(tx: Transaction, keys: Collection[str | None], refused: list[Refused]) -> None:
    try:
        with tx.part():
            hand_over(tx, keys)
    except RowRefused as error:
        refused.append(Refused(task_id=None, error=f"hand over: {error}"))


def _start(tx: Transaction, worker_id: str, claim: Claim, refused: list[Refused]) -> bool:
    try:
        with tx.part():
            return claiming.start(tx, worker_id, claim)
    except RowRefused as error:
        refused.append(Refused(task_id=claim.id, error=f"start: {error}"))
        return False


def _take(tx: Transaction, claim: Claim, refused: list[Refused]) -> bool:
    try:
        with tx.part():
            claiming.take(tx, [claim])
            return True
    except RowRefused as error:
        refused.append(Refused(task_id=claim.id, error=f"claim: {error}"))
        return False
