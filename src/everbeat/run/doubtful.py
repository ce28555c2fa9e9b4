"""Which tasks of a worker that has lost its session may be asked about before it is known to be gone.

All that its code has not begun, and what runs without an exclusive key: those wait for their lease (PROTOCOL 24).
"""

from collections.abc import Iterable

from everbeat.model.recovery import Cause, Orphan
from everbeat.model.session import Suspect
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import WorkerInfo


def doubtful(worker: WorkerInfo, suspect: Suspect, owned: Iterable[Claim]) -> list[Orphan]:
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
