"""Group commit: concurrent enqueues of one process share a transaction.

No thread of its own, so it works after a fork and never keeps a process alive: a sender that finds nobody committing
leads, and commits what all have queued up by then. It wakes the first of those whose work is done, and hands the lead
to the first of those who came meanwhile. One sender alone pays nothing extra.

A group that fails for a definite reason is repeated one by one: a bad row fails alone (PROTOCOL 7). A leader that is
interrupted leaves the others' work where it was; ids make the repetition harmless. An interrupt, which a signal handler
may raise after any call, also one within `_step_back`, must not take the lead or somebody's order with it: between two
calls that it may come after, what is under the lock is as it was, or as it is to be.

A signal handler may send, too, in the middle of what its thread sends, and must not wait for that: it does its work by
itself. Where its thread is writing to a file already, that is an error, and the rest of the world goes on.

Those whose work is done wake each other, one by one: one of them can run at a time, and meanwhile the next wakes up.

Few senders are quicker apart: four on PostgreSQL store a tenth more on a connection each than two by two.

Things that do not work: one lock that all wait for. Everybody whose work is done must then get it once to find out, one
after the other, and sixteen threads are hardly faster than one. A leader that wakes them all: each wakes up only to go
to sleep again until it gets the interpreter, and sixteen threads store a quarter less.
"""

import copy
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from types import FrameType

from everbeat.errors import StoreUnavailable
from everbeat.model.task import Enqueued, NewTask
from everbeat.store.lots import MOST_LOCKED
from everbeat.store.transaction import Database, Deadlock, Locked, RowRefused, Transaction
from everbeat.store.verbs import sending

LARGEST = 1000
FORGOTTEN = 0.02
"""With each that comes, a crowd is taken to be smaller by this: of a closed circle of senders not all are here at all
times, and lanes that are opened whenever few are would take from groups what makes them fast."""
UNTIL_LOOK = 0.02
"""After so long somebody who waits looks whether it is nested: to look takes longer than many a commit."""
DEADLOCKS = 4
"""Each takes a second. So many one order may meet after the first before it is refused."""
AFTER_DEADLOCK = 0.1
"""Those that go on need a moment to get what this one had; at once it would be in their way again."""


class _Order:
    """What one sender waits for: its work is done, or it is its turn to lead."""

    __slots__ = ("behind", "error", "followers", "is_done", "is_gone", "is_here", "leads", "result", "tasks", "wake")

    def __init__(self, tasks: Sequence[NewTask]) -> None:
        self.tasks = tasks
        self.result: Sequence[Enqueued] | None = None
        self.error: Exception | None = None
        self.leads = self.is_done = self.is_here = self.is_gone = False
        self.behind: _Order | None = None
        """Whom it wakes when it goes."""
        self.followers: Sequence[_Order] = ()
        """Those it has taken into its group, and not dismissed yet."""
        self.wake = threading.Lock()
        self.wake.acquire()

    def end(self, result: Sequence[Enqueued] | None, error: Exception | None = None) -> None:
        """Neither of them: it is still to be done."""
        self.result, self.error = result, error
        self.is_done = result is not None or error is not None


Keys = tuple[tuple[str, str | None, str | None], ...]
Store = Callable[[Sequence[Sequence[NewTask]]], "list[Sequence[Enqueued] | None]"]
"""Stores several enqueues, each of them all or nothing, and rings for them; None for one that it leaves alone."""


class GroupCommit:
    """`ring` is told what was committed in a transaction; what is about to be, if it `rings_early`: where all who write
    wait for each other, whoever is woken finds it, and wakes up while the disk is busy. `quickly` is tried first, if
    there is such a way. So many `lanes` may be committing at once, where the database gains by it; and `quiet_lanes`
    while no more senders than that are there at all: each then commits by itself and waits for no other. `is_keyed`:
    each may have to wait for somebody else's transaction that has its key; a group that was held up is repeated one by
    one, in a hurry, and whose key was free is stored."""

    def __init__(
        self,
        database: Database,
        ring: Callable[[Sequence[NewTask]], None],
        *,
        quickly: Store | None = None,
        lanes: int = 1,
        quiet_lanes: int = 1,
        rings_early: bool = False,
        is_keyed: bool = False,
    ) -> None:
        self._database = database
        self._ring = ring
        self._ways: Sequence[Store] = (self._surely,) if quickly is None else (quickly, self._surely)
        self._in_a_hurry: Sequence[Store] = (partial(self._surely, hurries=True),)
        self._lanes = lanes
        self._quiet_lanes = max(lanes, quiet_lanes)
        self._here = self._leading = 0
        """Senders that are here, and those of them that lead."""
        self._crowd = 0.0
        """How many have been here of late."""
        self._rings_early = rings_early
        self._is_keyed = is_keyed
        self._waiting: list[_Order] = []
        """Those that neither lead nor are being committed."""
        self._queue = threading.Lock()

    def enqueue(self, tasks: Sequence[NewTask]) -> Sequence[Enqueued]:
        order = _Order(tasks)
        if self._queue.locked() and _is_nested():
            self._commit_alone(order, self._ways)
        else:
            self._commit_in_turn(order)
        if order.error is not None:
            try:
                raise order.error
            finally:
                order.error = None  # whose traceback knows the order, and whatever was held where it was raised
        return order.result or []

    def _commit_in_turn(self, order: _Order) -> None:
        try:
            self._line_up(order)
            if not order.leads:
                self._await_turn(order)
            if not order.is_done:
                self._lead(order)
        finally:
            try:
                self._step_back(order)
            except BaseException:  # an interrupt
                self._step_back(order)
                raise

    def _await_turn(self, order: _Order) -> None:
        """Until its work is done, or it is to lead. Whoever is nested leaves the queue: it may be behind itself."""
        if order.wake.acquire(timeout=UNTIL_LOOK):
            return
        if not _is_nested():
            order.wake.acquire()
            return
        while not order.is_done and not order.wake.acquire(timeout=UNTIL_LOOK):
            with self._queue:
                is_free = order in self._waiting
                if is_free:
                    self._waiting.remove(order)
            if is_free:
                self._commit_alone(order, self._ways)

    def _line_up(self, order: _Order) -> None:
        with self._queue:
            order.is_here = True
            here = self._here = self._here + 1
            self._crowd = here if here > self._crowd else self._crowd - FORGOTTEN
            if self._leading < self._most:
                self._leading += 1
                order.leads = True
            else:
                self._waiting.append(order)

    @property
    def _most(self) -> int:
        """So many may lead now."""
        return self._quiet_lanes if self._crowd <= self._quiet_lanes else self._lanes

    def _step_back(self, order: _Order) -> None:
        """Whatever happened to this sender: whom it led and who is behind it may go, its order is gone, and if it led,
        another leads."""
        with self._queue:
            self._dismiss(order)
            if order.behind is not None:
                behind, order.behind = order.behind, None
                behind.wake.release()
            if not order.is_done and order in self._waiting:
                self._waiting.remove(order)
            if order.is_here:
                order.is_here = False
                self._here -= 1
            if order.leads and self._waiting and self._leading <= self._most:
                heir = self._waiting[0]
                del self._waiting[0]
                order.leads, heir.leads = False, True
                heir.wake.release()
            elif order.leads:
                self._leading -= 1
                order.leads = False
            order.is_gone = True

    def _dismiss(self, leader: _Order) -> None:
        """Those whose work is done may go, one after the other; the rest comes first in the next group."""
        here = [one for one in leader.followers if not one.is_gone]
        left, done = _left(here), [one for one in here if one.is_done]
        for one, behind in pairwise(done):
            one.behind = behind
        self._waiting[:0] = left
        leader.followers = ()
        if done:
            done[0].wake.release()

    def _lead(self, order: _Order) -> None:
        group = [order, *self._take(order)]
        try:
            self._commit(group)
        except StoreUnavailable as error:
            if isinstance(error, Deadlock):
                time.sleep(AFTER_DEADLOCK)
                self._commit_one_by_one(_left(group), self._ways)
            elif isinstance(error, Locked) and self._is_keyed and len(group) > 1:
                self._commit_one_by_one(_left(group), self._in_a_hurry)
            for one in _left(group):
                one.end(None, copy.copy(error))
        except Exception as error:  # noqa: BLE001 - a definite reason, whatever it is: it belongs to whoever brought it
            if len(group) == 1:
                order.end(None, error)
            else:
                self._commit_one_by_one(_left(group), self._ways)

    def _take(self, leader: _Order) -> Sequence[_Order]:
        """Whom it leads."""
        if not self._waiting:
            return ()
        with self._queue:
            size, count = len(leader.tasks), 0
            for order in self._waiting:
                size += len(order.tasks)
                if size > LARGEST:
                    break
                count += 1
            leader.followers = self._waiting[:count]
            del self._waiting[:count]
            return leader.followers

    def _commit(self, group: Sequence[_Order], ways: Sequence[Store] | None = None) -> None:
        for store in ways or self._ways:
            try:
                results = store([order.tasks for order in group])
            except self._database.refused as error:
                raise RowRefused(f"{type(error).__name__}: {error}") from error
            for order, result in zip(group, results, strict=True):
                order.end(result)
            group = _left(group)
            if not group:
                return

    def _surely(self, orders: Sequence[Sequence[NewTask]], *, hurries: bool = False) -> list[Sequence[Enqueued] | None]:
        tasks = sending.all_of(orders)
        try:
            results = self._in_transaction(sending.add_all, orders, tasks, hurries=hurries)
        except sending.NotAll:
            results = self._in_transaction(sending.enqueue_all, orders, tasks, hurries=hurries)
        if not self._rings_early:
            self._ring(tasks)
        return [*results]

    def _in_transaction(
        self,
        store: Callable[[Transaction, Sequence[Sequence[NewTask]]], list[Sequence[Enqueued]]],
        orders: Sequence[Sequence[NewTask]],
        tasks: Sequence[NewTask],
        *,
        hurries: bool,
    ) -> list[Sequence[Enqueued]]:
        with self._database.write("enqueue", hurries=hurries) as tx:
            results = store(tx, orders)
            if self._rings_early:
                self._ring(tasks)
        return results

    def _commit_one_by_one(self, group: Sequence[_Order], ways: Sequence[Store]) -> None:
        """All that come later wait for it. So what one has found locked no other tries, for other locks the rest waits
        only a moment, and after MOST_LOCKED of them it is refused."""
        refused: Locked | None = None
        locked: set[Keys] = set()
        for order in group:
            keys = _keys(order.tasks)
            if refused is not None and (keys in locked or len(locked) == MOST_LOCKED):
                order.end(None, copy.copy(refused))
                continue
            error = self._commit_alone(order, ways)
            if error is not None:
                refused, ways = error, self._in_a_hurry
                locked.add(keys)

    def _commit_alone(self, order: _Order, ways: Sequence[Store]) -> Locked | None:
        """What it was refused for, if it is a lock. In its own order it may meet one that has the same keys in another:
        the server lets one of them go on, and this one comes again when that is done."""
        for left in reversed(range(DEADLOCKS)):
            try:
                self._commit([order], ways)
            except Exception as error:  # noqa: BLE001 - as above
                if left and isinstance(error, Deadlock):
                    time.sleep(AFTER_DEADLOCK)
                    continue
                order.end(None, error)
                return error if isinstance(error, Locked) else None
            break
        return None


def _is_nested() -> bool:
    """Whether a signal handler, or a finalizer, sends in the middle of what the same thread sends: what is done there
    goes on only after it."""
    frame: FrameType | None = sys._getframe()
    depth = 0
    while frame is not None:
        depth += frame.f_code is GroupCommit.enqueue.__code__
        frame = frame.f_back
    return depth > 1


def _keys(tasks: Sequence[NewTask]) -> Keys:
    """What they may have to wait for."""
    return tuple((task.kind.name, task.unique_key, task.kind.exclusive_key) for task in tasks)


def _left(group: Sequence[_Order]) -> list[_Order]:
    return [order for order in group if not order.is_done]
