"""The part of a SQL store that people command."""

from collections.abc import Iterator, Sequence

from everbeat.model.order import Order
from everbeat.model.state import Change, target
from everbeat.store.messages import TaskFilter
from everbeat.store.sql.base import Base
from everbeat.store.verbs import commanding, queueing, turns

RIVALS = 10
"""So often in a row somebody else may take the unique key of a task while it is being retried."""


class Commanded(Base):
    def cancel(self, task_id: str, *, actor: str) -> bool:
        return any(self.carry_out(Order.CANCEL, TaskFilter(ids=[task_id]), actor=actor))

    def carry_out(self, order: Order, wanted: TaskFilter, *, actor: str, reason: str | None = None,
                  dry_run: bool = False) -> Iterator[list[str]]:  # fmt: skip
        after = 0
        while found := self._fit(order, wanted, after):
            after = found[-1][0]
            yield [task_id for _, task_id in found] if dry_run else self._do(order, wanted, found, actor, reason)
        if order is Order.ERASE and after and not dry_run:
            self.database.empty_log()  # it holds what was erased

    def _fit(self, order: Order, wanted: TaskFilter, after: int) -> list[tuple[int, str]]:
        with self.database.read() as tx:
            return commanding.fit(tx, order, wanted, after=after)

    def _do(self, order: Order, wanted: TaskFilter, found: Sequence[tuple[int, str]], actor: str,
            reason: str | None) -> list[str]:  # fmt: skip
        for _ in range(RIVALS):
            try:
                return self._batch(order, wanted, found, actor, reason)
            except self.database.refused:
                if order.change is not Change.REVIVE:
                    raise
        return self._batch(order, wanted, found, actor, reason)

    def _batch(self, order: Order, wanted: TaskFilter, found: Sequence[tuple[int, str]], actor: str,
               reason: str | None) -> list[str]:  # fmt: skip
        with self.database.write(wipe=order is Order.ERASE) as tx:
            seqs = [seq for seq, _ in found]
            done, owners = commanding.carry_out(tx, order, wanted, seqs, actor=actor, reason=reason)
            turns.hand_over(tx)
        if order.change is not None and done:
            if target(order.change).is_terminal:
                self.bells.ring_waiters([*done, *tx.done])
            self.bells.ring_workers(None)  # also for what becomes ready by the end of another
        if owners:
            self.bells.ring_owners(owners)
        return done

    def count_for(self, order: Order, wanted: TaskFilter) -> int:
        with self.database.read() as tx:
            return commanding.count(tx, order, wanted)

    def set_paused(self, queue: str, *, is_paused: bool, actor: str) -> bool:
        with self.database.write() as tx:
            changed = queueing.set_paused(tx, queue, is_paused=is_paused, actor=actor)
        if changed:
            self.bells.ring_workers(tx.wakes if is_paused else None)
        return changed

    def accept(self, task_id: str, *, actor: str) -> bool:
        with self.database.write() as tx:
            accepted = commanding.accept(tx, task_id, actor=actor)
        if accepted:
            self.bells.ring_waiters([task_id, *tx.done])
            self.bells.ring_workers(tx.wakes)
        return accepted
