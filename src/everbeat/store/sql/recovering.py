"""The part of a SQL store that recovery asks: who is alive, what is orphaned, and what was decided about it."""

from collections.abc import Sequence
from itertools import compress

from everbeat.model.recovery import RECOVERY_ACTOR, Leased, Orphan, OrphanClass, Settlement, Unsettled, Verdict
from everbeat.model.report import RecoveryReport
from everbeat.model.session import Suspect
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import WorkerInfo
from everbeat.store.interface import Session
from everbeat.store.lots import in_lots
from everbeat.store.messages import StaleTask
from everbeat.store.sql.base import Base
from everbeat.store.transaction import Kind, Locked, Transaction
from everbeat.store.verbs import classes, leasing, living, recovering

LOCKED = "somebody has locked it or its workflow: SELECT * FROM pg_stat_activity WHERE xact_start IS NOT NULL"


class Recovering(Base):
    def workers(self, *, alive_only: bool = False) -> list[WorkerInfo]:
        with self.database.read() as tx:
            return living.workers(tx, alive_only=alive_only)

    def declare_dead(
        self,
        worker_id: str,
        *,
        reason: str,
        cause: str,
        silent_for_us: int | None = None,
        unseen_for_us: int | None = None,
    ) -> bool:
        with self.database.write("declare_dead") as tx:
            return living.declare_dead(
                tx, worker_id, reason=reason, cause=cause, silent_for_us=silent_for_us,
                unseen_for_us=unseen_for_us,
            )  # fmt: skip

    def requeue_silent_claims(self, silent_for_us: int, *, reason: str) -> int:
        with self.database.write("recover") as tx:
            requeued = recovering.requeue_silent_claims(tx, silent_for_us=silent_for_us, reason=reason)
        if requeued:
            self.bells.ring_workers(None)
        return requeued

    def orphans(self, *, limit: int, after: Claim | None = None) -> list[Claim]:
        with self.database.read() as tx:
            return recovering.orphans(tx, limit=limit, after=after)

    def owned_by(self, worker_id: str, *, limit: int = 1000, after: int = 0) -> list[Claim]:
        with self.database.read() as tx:
            return recovering.owned_by(tx, worker_id, limit=limit, after=after)

    def surely_owned_by(self, worker_id: str) -> list[Claim]:
        with self.database.write() as tx:
            return recovering.surely_owned_by(tx, worker_id)

    def owned_ids(self, worker_id: str, *, limit: int) -> list[str]:
        with self.database.read() as tx:
            return recovering.owned_ids(tx, worker_id, limit=limit)

    def beaten_for(self, worker_id: str) -> str | None:
        with self.database.read() as tx:
            return recovering.beaten_for(tx, worker_id)

    def count_owned(self, worker_id: str) -> int:
        with self.database.read() as tx:
            return recovering.count_owned(tx, worker_id)

    def count_orphans(self) -> int:
        with self.database.read() as tx:
            return recovering.count_orphans(tx)

    def recover(self, verdicts: Sequence[tuple[Orphan, Verdict]], *, actor: str = RECOVERY_ACTOR) -> list[Settlement]:
        def write(verdicts: Sequence[tuple[Orphan, Verdict]], hurries: bool) -> list[Settlement]:
            with self.database.write("recover", hurries=hurries) as tx:
                free = leasing.are_free(tx, verdicts)
                decided = iter(recovering.recover(tx, list(compress(verdicts, free)), actor=actor))
                settlements = [
                    next(decided) if is_free else Leased(task_id=orphan.claim.id)
                    for is_free, (orphan, _) in zip(free, verdicts, strict=True)
                ]
                again = self._note_recovered(tx, settlements, verdicts)
            self._tell(tx, again)
            return settlements

        return in_lots(verdicts, workflow_of, write, unsettled)

    def _note_recovered(
        self, tx: Transaction, settlements: Sequence[Settlement], verdicts: Sequence[tuple[Orphan, Verdict]]
    ) -> set[Kind]:
        ends = zip(settlements, verdicts, strict=True)
        return self._note_ends(tx, ((settlement, orphan.claim, verdict) for settlement, (orphan, verdict) in ends))

    def hold_session(self, worker_id: str) -> Session | None:
        return None

    def session_holders(self) -> frozenset[str] | None:
        return None

    def recover_suspected(
        self, suspect: Suspect, verdicts: Sequence[tuple[Orphan, Verdict]]
    ) -> list[Settlement] | None:
        """Where there are no sessions nobody is suspected."""
        return None

    def gone_owners(self) -> list[str | None]:
        with self.database.read() as tx:
            return recovering.gone_owners(tx)

    def orphan_classes(self, owner: str | None, *, after: int, limit: int) -> list[OrphanClass]:
        with self.database.read() as tx:
            return classes.classes_of(tx, owner, after=after, limit=limit)

    def recover_classes(self, verdicts: Sequence[tuple[OrphanClass, Verdict]]) -> list[bool]:
        try:
            with self.database.write("recover") as tx:
                written = [classes.try_class(tx, orphans, verdict, RECOVERY_ACTOR) for orphans, verdict in verdicts]
        except Locked:
            return [False] * len(verdicts)
        self.bells.ring_workers(None)
        return written

    def role_holder(self, role: str) -> str | None:
        with self.database.read() as tx:
            return living.role_holder(tx, role)

    def take_role(self, role: str, worker_id: str, *, lease_us: int) -> bool:
        with self.database.write() as tx:
            return living.take_role(tx, role, worker_id, lease_us=lease_us)

    def healthy_for_us(self) -> int:
        with self.database.read() as tx:
            return living.healthy_for_us(tx)

    def stale_tasks(self, status: TaskStatus, silent_for_us: int) -> list[StaleTask]:
        with self.database.read() as tx:
            return recovering.stale_tasks(tx, status, silent_for_us=silent_for_us)

    def save_report(self, report: RecoveryReport, *, actor: str) -> RecoveryReport:
        with self.database.write() as tx:
            return recovering.save_report(tx, report, actor=actor)

    def reports(self, *, limit: int) -> list[RecoveryReport]:
        with self.database.read() as tx:
            return recovering.reports(tx, limit=limit)


def workflow_of(decided: tuple[Orphan, Verdict]) -> str | None:
    return decided[0].claim.workflow_id


def unsettled(decided: tuple[Orphan, Verdict]) -> Settlement:
    """Tried again with all that could not be recovered."""
    return Unsettled(task_id=decided[0].claim.id, error=LOCKED)
