"""Who is gone for certain, and what had begun under them.

A freed lock or another boot is a proof, and acted on at once (PROTOCOL 10). For what a worker that is gone had marked
RUNNING its journal says whether code began (PROTOCOL 20); where that can not be believed, RUNNING is taken at its word.
"""

from pathlib import Path

from everbeat.clock import Clock
from everbeat.decide.liveness import is_elsewhere
from everbeat.model.worker import Host, WorkerInfo, WorkerStatus
from everbeat.run.journal import Journal
from everbeat.run.lockfile import GONE, Liveness, probe
from everbeat.run.slot import Ownership


class Witness:
    def __init__(self, me: Host, clock: Clock) -> None:
        self._me = me
        self._clock = clock

    def proof(self, worker: WorkerInfo) -> str | None:
        """Why it is certain that this worker is gone; None if it is not."""
        if not worker.same_clock:
            is_over = not self.lives_elsewhere(worker)
            return f"the host was restarted since worker {worker.id} ran on it" if is_over else None
        liveness, reason = self.look_at(worker)
        return reason if liveness is Liveness.FREE else None

    def look_at(self, worker: WorkerInfo) -> tuple[Liveness, str]:
        return probe(worker.lock, worker.id, worker.host, self._me)

    def lives_elsewhere(self, worker: WorkerInfo) -> bool:
        """Whether it seems to run under another kernel: nothing that is known here proves or disproves its death."""
        now = self._clock.wall_us()
        return is_elsewhere(worker, now_us=now, booted_at_us=now - self._clock.mono_us())

    def begun_under(self, owner: WorkerInfo) -> frozenset[Ownership] | None:
        """The begin marks of a worker that is proven gone, or has said that it is; None if they can not be believed."""
        if not owner.same_clock:
            return None
        if owner.status is not WorkerStatus.STOPPED and self.look_at(owner)[0] not in GONE:
            return None
        facts = Journal.read(Journal.path_of(Path(owner.lock.path).parent, owner.id))
        if facts is None or (facts.worker_id, facts.boot_id) != (owner.id, owner.host.boot_id):
            return None
        return facts.begun
