"""Which tasks with exclusive keys may be taken from an owner that is not proven gone: those whose lease is over.

The silence is tested in the transaction that acts on it, by the lease that the owner itself has announced: it has
stopped such tasks before that time (PROTOCOL 24). A row of another clock is silent without end; an owner without a row
has nothing that could be waited for.
"""

from collections.abc import Sequence

from everbeat.model.recovery import Orphan, Verdict
from everbeat.model.state import TaskStatus
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.living import LONGEST_EXCLUSIVE_MS

# A lease that no worker can have counts as the longest that one can.
LEASE_US = f"""
1000 * CASE WHEN exclusive_lease_ms BETWEEN 0 AND {LONGEST_EXCLUSIVE_MS} THEN exclusive_lease_ms
            ELSE {LONGEST_EXCLUSIVE_MS} END"""
IS_HELD = f"""
SELECT 1 FROM everbeat_workers
 WHERE id = :id AND clock_id = :clock_id AND beat_mono BETWEEN :mono - {LEASE_US} AND :mono + {LEASE_US}
 /*pg: FOR UPDATE */"""


def are_free(tx: Transaction, verdicts: Sequence[tuple[Orphan, Verdict]]) -> list[bool]:
    """Whether each may be decided now. Where its code is known not to run any more, or has no key, it always may."""
    return [not _is_leased(orphan) or not is_held(tx, orphan.claim.worker_id) for orphan, _ in verdicts]


def is_held(tx: Transaction, worker_id: str | None) -> bool:
    return tx.one(IS_HELD, {"id": worker_id, "clock_id": tx.clock_id, "mono": tx.mono}) is not None


def _is_leased(orphan: Orphan) -> bool:
    claim = orphan.claim
    return claim.exclusive_key is not None and claim.status is TaskStatus.RUNNING and not orphan.is_certain
