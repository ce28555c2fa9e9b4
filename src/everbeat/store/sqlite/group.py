"""Group commit: concurrent enqueues of one process share a transaction.

No thread of its own, so it works after a fork and never keeps a process alive: whoever gets the lock commits what all
have queued up by then, the others find their work done when their turn comes. One sender alone pays nothing extra.

A group that fails for a definite reason is repeated one by one: a bad row fails alone (PROTOCOL 7). A leader that is
interrupted leaves the others' work where it was; ids make the repetition harmless.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from everbeat.errors import StoreUnavailable
from everbeat.model.task import Enqueued, NewTask
from everbeat.store.sqlite.connection import Database
from everbeat.store.verbs import sending

LARGEST = 1000


@dataclass(slots=True, eq=False)
class _Order:
    tasks: Sequence[NewTask]
    result: list[Enqueued] | None = None
    error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None


class GroupCommit:
    """`ring` is told what was committed, once per group."""

    def __init__(self, database: Database, ring: Callable[[Sequence[NewTask]], None]) -> None:
        self._database = database
        self._ring = ring
        self._waiting: list[_Order] = []
        self._turn = threading.Lock()

    def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        order = _Order(tasks)
        self._waiting.append(order)
        try:
            with self._turn:
                while not order.is_done:
                    self._commit_waiting()
        except BaseException:
            if order in self._waiting:
                self._waiting.remove(order)
            raise
        if order.error is not None:
            raise order.error
        return order.result or []

    def _commit_waiting(self) -> None:
        group = self._take()
        try:
            self._commit(group)
        except StoreUnavailable as error:
            for order in group:
                order.error = copy.copy(error)
        except Exception as error:  # noqa: BLE001 - a definite reason, whatever it is: it belongs to whoever brought it
            if len(group) == 1:
                group[0].error = error
            else:
                self._commit_one_by_one(group)
        finally:
            self._waiting[:0] = [order for order in group if not order.is_done]

    def _take(self) -> list[_Order]:
        size, count = 0, 0
        for order in self._waiting:
            if count and size + len(order.tasks) > LARGEST:
                break
            size += len(order.tasks)
            count += 1
        group = self._waiting[:count]
        del self._waiting[:count]
        return group

    def _commit(self, group: Sequence[_Order]) -> None:
        with self._database.write("enqueue") as tx:
            results = [sending.enqueue(tx, order.tasks) for order in group]
        for order, result in zip(group, results, strict=True):
            order.result = result
        self._ring([task for order in group for task in order.tasks])

    def _commit_one_by_one(self, group: Sequence[_Order]) -> None:
        for order in group:
            try:
                self._commit([order])
            except Exception as error:  # noqa: BLE001 - as above
                order.error = error
