"""The part of a SQL store that workers live by: the life of a worker, and of the tasks that it holds."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everbeat.model.worker import NewWorker, Standing, WorkerState
from everbeat.store.lots import in_lots
from everbeat.store.messages import Beat, Flush, Flushed, Held, Ours
from everbeat.store.sql.base import Base
from everbeat.store.transaction import RowRefused
from everbeat.store.verbs import carefully, expiring, living, owning, queueing, recovering, stopping, turns, unknown


class Working(Base):
    def register(self, worker: NewWorker) -> None:
        with self.database.write("register") as tx:
            living.register(tx, worker)
            queueing.declare(tx, worker.settings)

    def renew_names(self, worker_id: str, task_names: Collection[str]) -> None:
        with self.database.write() as tx:
            living.renew_names(tx, worker_id, task_names)

    def standing(self, worker_id: str) -> Standing:
        with self.database.read() as tx:
            return living.standing(tx, worker_id, is_same_file=self.database.is_same_file)

    def beat(self, worker_id: str, held: Collection[Held], state: WorkerState | None = None,
             seen: int | None = None) -> Beat:  # fmt: skip
        with self.database.write("beat") as tx:
            beat = living.beat(tx, worker_id, held, seen)
            if not beat.alive:
                return beat
            if state is not None:
                living.add_state(tx, worker_id, state)
            known = {(one.task_id, one.fence) for one in held}
            owned = recovering.owned_by(tx, worker_id, limit=10_000)
        return replace(beat, strangers=[claim for claim in owned if (claim.id, claim.fence) not in known])

    def renew(self, worker_id: str, held: Collection[Held], seen_beat: int) -> bool:
        with self.database.write("beat") as tx:
            return living.beat(tx, worker_id, held, seen_beat).alive

    def retire(self, worker_id: str, facts: Mapping[str, Any] | None = None) -> None:
        with self.database.write("retire") as tx:
            living.retire(tx, worker_id, facts or {})

    def flush(self, flush: Flush) -> Flushed:
        try:
            with self.database.write("flush", hurries=flush.hurries) as tx:
                flushed = carefully.flush(tx, flush) if flush.row_by_row else owning.flush(tx, flush)
                again = self._note_settled(tx, flush.endings, flushed.settlements)
        except self.database.refused as error:
            raise RowRefused(f"{type(error).__name__}: {error}") from error
        owning.mark_started(flushed.started)
        if flushed.settlements:
            self._tell(tx, again)
        return flushed

    def expire(self, *, settle_us: int) -> list[str]:
        with self.database.read() as tx:
            if not expiring.is_due(tx, settle_us=settle_us):
                return []
        with self.database.write() as tx:
            over = expiring.over(tx, settle_us=settle_us)
        if not over:
            return []
        became = in_lots(over, lambda one: one.workflow_id, self._end_expired, lambda one: None, hurries=True)
        return [task_id for task_id in became if task_id is not None]

    def _end_expired(self, over: Sequence[expiring.Over], hurries: bool) -> list[str | None]:
        with self.database.write(hurries=hurries) as tx:
            became = expiring.expire(tx, over)
        ended = [task_id for task_id in became if task_id is not None]
        if ended:
            self.bells.ring_waiters([*ended, *tx.done])
            self.bells.ring_workers(None)  # a claim does not look far behind what is in its way
        return became

    def refuse_unknown(self, *, after_us: int, gap_us: int) -> list[str]:
        with self.database.read() as tx:
            if not unknown.is_due(tx):
                return []
        with self.database.write() as tx:
            failed = unknown.refuse(tx, after_us=after_us, gap_us=gap_us)
        if failed:
            self.bells.ring_waiters([*failed, *tx.done])
            self.bells.ring_workers(tx.wakes)
        return failed

    def mend_turns(self, after: str = "") -> str:
        with self.database.read() as tx:
            keys, last = turns.lost(tx, after=after, limit=turns.AT_ONCE)
        if keys:
            with self.database.write() as tx:
                turns.hand_over(tx, keys)
            self.bells.ring_workers(tx.wakes)
        return last

    def ours(self, worker_id: str, *, seen_beat: int = 0) -> Ours:
        with self.database.read(steady=True) as tx:
            return stopping.ours(tx, worker_id, seen_beat=seen_beat)
