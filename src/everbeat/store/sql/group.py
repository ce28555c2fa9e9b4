"""Group commit: concurrent enqueues of one process share a transaction.

No thread of its own, so it works after a fork and never keeps a process alive: a sender that finds nobody committing
leads, and commits what all have queued up by then. It wakes those whose work is done and hands the lead to the first of
those who came meanwhile. One sender alone pays nothing extra.

A group that fails for a definite reason is repeated one by one: a bad row fails alone (PROTOCOL 7). A leader that is
interrupted leaves the others' work where it was; ids make the repetition harmless.

Things that do not work: one lock that all wait for. Everybody whose work is done must then get it once to find out, one
after the other, and sixteen threads are hardly faster than one.
"""

import copy
import threading
from collections.abc import Callable, Sequence

from everbeat.errors import StoreUnavailable
from everbeat.model.task import Enqueued, NewTask
from everbeat.store.transaction import Database, RowRefused
from everbeat.store.verbs import sending

LARGEST = 1000


class _Order:
    """What one sender waits for: its work is done, or it is its turn to lead."""

    __slots__ = ("error", "leads", "result", "tasks", "wake")

    def __init__(self, tasks: Sequence[NewTask]) -> None:
        self.tasks = tasks
        self.result: list[Enqueued] | None = None
        self.error: Exception | None = None
        self.leads = False
        self.wake = threading.Lock()
        self.wake.acquire()

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None


class GroupCommit:
    """`ring` is told what was committed, once per group."""

    def __init__(self, database: Database, ring: Callable[[Sequence[NewTask]], None]) -> None:
        self._database = database
        self._ring = ring
        self._waiting: list[_Order] = []
        self._is_led = False
        self._queue = threading.Lock()

    def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        order = _Order(tasks)
        try:
            self._line_up(order)
            if not order.leads:
                order.wake.acquire()
            while not order.is_done:
                self._commit_waiting()
        finally:
            self._step_back(order)
        if order.error is not None:
            raise order.error
        return order.result or []

    def _line_up(self, order: _Order) -> None:
        with self._queue:
            self._waiting.append(order)
            order.leads = not self._is_led
            self._is_led = True

    def _step_back(self, order: _Order) -> None:
        """Whatever happened to this sender: its order is gone, and if it led, another one does."""
        with self._queue:
            if order in self._waiting:
                self._waiting.remove(order)
            if not order.leads:
                return
            self._is_led = bool(self._waiting)
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].wake.release()

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
            with self._queue:
                self._waiting[:0] = [order for order in group if not order.is_done]
            for order in group:
                if order.is_done and not order.leads:
                    order.wake.release()

    def _take(self) -> list[_Order]:
        with self._queue:
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
        try:
            with self._database.write("enqueue") as tx:
                results = sending.enqueue_all(tx, [order.tasks for order in group])
        except self._database.refused as error:
            raise RowRefused(f"{type(error).__name__}: {error}") from error
        for order, result in zip(group, results, strict=True):
            order.result = result
        self._ring([task for order in group for task in order.tasks])

    def _commit_one_by_one(self, group: Sequence[_Order]) -> None:
        for order in group:
            try:
                self._commit([order])
            except Exception as error:  # noqa: BLE001 - as above
                order.error = error
