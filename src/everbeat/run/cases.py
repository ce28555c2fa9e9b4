"""From rows without an owner, or with one that is in doubt, to facts that can be decided about, and to verdicts.

What is known of an owner, and its begin marks, are read once per pass; a verdict is found once for each class of
orphans (PROTOCOL 39).
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

from everbeat.decide.recover import class_of, flaw_of, recovery_for
from everbeat.model.recovery import Cause, Orphan, OrphanClass, RecoveryPolicy, Verdict
from everbeat.model.session import Suspect
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import WorkerInfo
from everbeat.run.slot import Ownership
from everbeat.run.witness import Witness
from everbeat.store.interface import Store

Jitter = Callable[[], float]


class Cases:
    """What is known in one pass."""

    def __init__(self, store: Store, witness: Witness) -> None:
        self._store = store
        self._witness = witness
        self._marks: dict[str, frozenset[Ownership] | None] = {}

    @cached_property
    def owners(self) -> dict[str, WorkerInfo]:
        return {worker.id: worker for worker in self._store.workers()}

    def orphans(self, claims: Sequence[Claim]) -> list[Orphan]:
        orphans: list[Orphan] = []
        evidence: dict[str | None, str] = {}
        for claim in claims:
            owner = self.owners.get(claim.worker_id or "")
            is_certain = claim.exclusive_key is None or owner is None or self._witness.proof(owner) is not None
            cause = Cause.NEVER_BEGAN if self._never_began(claim, owner) else Cause.LOST
            if cause is Cause.LOST and not is_certain:
                cause = Cause.LEASE_LOST
            if claim.worker_id not in evidence:
                evidence[claim.worker_id] = _evidence(owner, claim)
            seen = evidence[claim.worker_id]
            orphans.append(Orphan(claim=claim, cause=cause, evidence=seen, is_certain=is_certain))
        return orphans

    def orphan_of(self, orphans: OrphanClass) -> Orphan:
        """One that stands for the class. Its owner has no marks."""
        claim = orphans.claim
        cause = Cause.NEVER_BEGAN if claim.status is TaskStatus.CLAIMED else Cause.LOST
        return Orphan(claim=claim, cause=cause, evidence=_evidence(self.owners.get(claim.worker_id or ""), claim))

    def has_marks(self, worker_id: str | None) -> bool:
        """Whether its journal tells the tasks of this owner apart."""
        owner = self.owners.get(worker_id or "")
        return owner is not None and self._marks_of(owner) is not None

    def _never_began(self, claim: Claim, owner: WorkerInfo | None) -> bool:
        if claim.status is TaskStatus.CLAIMED:
            return True
        begun = self._marks_of(owner) if owner is not None else None
        return begun is not None and (claim.seq, claim.fence) not in begun

    def _marks_of(self, owner: WorkerInfo) -> frozenset[Ownership] | None:
        if owner.id not in self._marks:
            self._marks[owner.id] = self._witness.begun_under(owner)
        return self._marks[owner.id]


def lapsed(store: Store, workers: Iterable[WorkerInfo], *, healthy_for_us: int) -> list[Orphan]:
    """RUNNING tasks with exclusive keys of workers that count as alive, but have been silent for longer than the lease
    they announced (PROTOCOL 24). They have stopped these tasks; if the store was away for as long, they get the time to
    say so themselves."""
    orphans: list[Orphan] = []
    for worker in workers:
        if min(worker.silent_for_us, healthy_for_us) > worker.exclusive_lease_ms * 1000:
            evidence = f"worker {worker.id} on {worker.host.name} silent for {worker.silent_for_us / 1e6:.0f}s"
            orphans += [
                Orphan(claim=claim, cause=Cause.LEASE_LOST, evidence=evidence)
                for claim in store.owned_by(worker.id)
                if claim.exclusive_key is not None and claim.status is TaskStatus.RUNNING
            ]
    return orphans


def doubtful(worker: WorkerInfo, suspect: Suspect, owned: Iterable[Claim]) -> list[Orphan]:
    """Tasks of a worker that has lost its session which may be decided about before it is known to be gone: those whose
    code has not begun, and those that run without an exclusive key. The others wait for their lease (PROTOCOL 24)."""
    missing = suspect.missing_us / 1e6
    evidence = f"worker {worker.id} on {worker.host.name} lost its session and has not returned for {missing:.0f}s"
    return [
        Orphan(
            claim=claim,
            cause=Cause.NEVER_BEGAN if claim.status is TaskStatus.CLAIMED else Cause.LOST,
            evidence=evidence,
        )
        for claim in owned
        if claim.status is TaskStatus.CLAIMED or claim.exclusive_key is None
    ]


def decide(orphans: Iterable[Orphan], policy: RecoveryPolicy, jitter: Jitter) -> Iterator[tuple[Orphan, Verdict | str]]:
    """Once for each class of them. In place of a verdict: why there can be none."""
    known: dict[object, Verdict | str] = {}
    for orphan in orphans:
        kind = class_of(orphan)
        if kind not in known:
            known[kind] = flaw_of(orphan.claim) or recovery_for(orphan, policy, jitter=jitter())
        yield orphan, known[kind]


def recover_all(
    store: Store, orphans: Sequence[Orphan], policy: RecoveryPolicy, *, jitter: Jitter = random.random
) -> None:
    """Decide and write. A row that nothing can be decided about, or that can not be written, is left."""
    decided = [(orphan, verdict) for orphan, verdict in decide(orphans, policy, jitter) if isinstance(verdict, Verdict)]
    if decided:
        store.recover(decided)


def _evidence(owner: WorkerInfo | None, claim: Claim) -> str:
    if owner is None:
        return f"worker {claim.worker_id or '(none)'} is unknown"
    return owner.end_reason or f"worker {owner.id} on {owner.host.name} {owner.status}"
