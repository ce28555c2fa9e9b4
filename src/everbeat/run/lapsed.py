"""Finds tasks with exclusive keys whose owners were silent for too long to keep them (PROTOCOL 24)."""

from collections.abc import Iterable

from everbeat.model.recovery import Cause, Orphan
from everbeat.model.state import TaskStatus
from everbeat.model.worker import WorkerInfo
from everbeat.store.interface import Store


def lapsed(store: Store, workers: Iterable[WorkerInfo], *, healthy_for_us: int) -> list[Orphan]:
    """Tasks with exclusive keys whose workers count as alive and have been silent for longer than the lease they
    announced. They have stopped them; if the store was away for as long, they get the time to say so themselves."""
    orphans: list[Orphan] = []
    for worker in workers:
        lease_us = worker.exclusive_lease_ms * 1000
        if min(worker.silent_for_us, healthy_for_us) > lease_us:
            evidence = f"worker {worker.id} on {worker.host.name} silent for {worker.silent_for_us / 1e6:.0f}s"
            orphans += [
                Orphan(claim=claim, cause=Cause.LEASE_LOST, evidence=evidence)
                for claim in store.owned_by(worker.id)
                if claim.exclusive_key is not None and claim.status is TaskStatus.RUNNING
            ]
    return orphans
