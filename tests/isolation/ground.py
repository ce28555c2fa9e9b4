"""The stores that the sessions use, emptied between two orders; what the sessions were told; and what must be true when
they are done."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from tests.isolation.stepping import Stage, stepped
from tests.words import VirtualClock, a_room, completed, recover, register

from everbeat.model.flow import WorkflowChange
from everbeat.model.recovery import Adopted, Settled, Settlement, Verdict
from everbeat.model.state import Change
from everbeat.model.task import Claim
from everbeat.store.interface import Bell
from everbeat.store.messages import Ending, Flush, Flushed
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.schema import steps
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.transaction import Kind, Row

AnyStore = PostgresStore | SQLiteStore
NAMES = ("main", "one", "two", "three")
"""Of the stores: the test's own, and one for each session."""
TABLES = [
    table for step in steps() for table in re.findall(r"CREATE TABLE (\w+)", step.script) if table != "everbeat_meta"
]
READY = """
SELECT seq, fence, queue, name FROM everbeat_tasks
 WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL"""
# For what is due everybody has a clock, and looks by itself.
READY_OR_DUE = """
SELECT seq, fence FROM everbeat_tasks
 WHERE status = 'PENDING' AND waiting_for IS NULL AND (due_at IS NULL OR due_at <= {now})"""
OWNED = "SELECT queue, count(*) FROM everbeat_tasks WHERE status IN ('CLAIMED', 'RUNNING') GROUP BY queue"
LIMITS = "SELECT name, max_concurrency FROM everbeat_queues WHERE max_concurrency IS NOT NULL"
TURNS = """
SELECT exclusive_key,
       sum(CASE WHEN waiting_for IS NULL AND due_at IS NULL THEN 1 ELSE 0 END),
       sum(CASE WHEN waiting_for IS NOT NULL AND due_at IS NULL AND held = 0 THEN 1 ELSE 0 END)
  FROM everbeat_tasks WHERE exclusive_key IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING')
 GROUP BY exclusive_key"""
STATES = "SELECT id, status, fence, worker_id, result FROM everbeat_tasks"
NOT_ENDED = "SELECT id, status, waiting_for FROM everbeat_tasks WHERE finished_at IS NULL"
ASTRAY = """
SELECT id FROM everbeat_tasks
 WHERE finished_at IS NULL AND workflow_id IS NOT NULL AND workflow_id NOT IN (SELECT id FROM everbeat_workflows)"""
LIVE_FLOWS = "SELECT id, status, nodes_left FROM everbeat_workflows WHERE finished_at IS NULL OR nodes_left > 0"


class Rings:
    """Bells that remember what they rang for."""

    are_light = False

    def __init__(self) -> None:
        self.workers: list[set[Kind] | None] = []

    def ring_workers(self, kinds: set[Kind] | None) -> None:
        self.workers.append(kinds if kinds is None else set(kinds))

    def ring_with(self, kinds: Collection[Kind], commit: Callable[[Sequence[Any]], Any]) -> Any:
        committed = commit([])
        self.ring_workers({*kinds})
        return committed

    def ring_owners(self, workers: Collection[str]) -> None:
        pass

    def ring_waiters(self, tasks: Collection[str]) -> None:
        pass

    def words_for_waiters(self, tasks: Collection[str]) -> list[Any]:
        return []

    def for_worker(self, worker_id: str) -> Bell:
        raise NotImplementedError

    def for_waiter(self, task_id: str) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def covers(self, queue: str, name: str) -> bool:
        return any(kinds is None or (queue, name) in kinds or (queue, None) in kinds for kinds in self.workers)


class Ground:
    def __init__(self, stores: dict[str, AnyStore], clock: VirtualClock) -> None:
        self.stores = stores
        self.clock = clock
        self.clear()

    def clear(self) -> None:
        with self.main.database.write() as tx:
            for table in TABLES:
                tx.run(f"DELETE FROM {table}")
        self.handed: list[Claim] = []
        self.settled: list[tuple[Ending, Settlement]] = []
        self.begin()

    def begin(self) -> None:
        """What is rung from here on counts."""
        self.rings = Rings()
        for store in self.stores.values():
            store.bells = self.rings  # type: ignore[assignment]
        self.ready_before = {(seq, fence) for seq, fence in self.ask(READY_OR_DUE.format(now=self.clock.wall_us()))}
        self.full_before = {queue for queue, left in self._left() if left <= 0}

    @property
    def main(self) -> AnyStore:
        return self.stores["main"]

    @property
    def one(self) -> AnyStore:
        return self.stores["one"]

    @property
    def two(self) -> AnyStore:
        return self.stores["two"]

    @property
    def three(self) -> AnyStore:
        return self.stores["three"]

    def ask(self, sql: str) -> list[Row]:
        with self.main.database.read() as tx:
            return tx.all(sql)

    def flush(self, store: AnyStore, worker: str, *, ends: Sequence[tuple[Claim, Verdict]] = (),
              starts: Sequence[Claim] = (), places: int = 0, own: int = 0) -> Flushed:  # fmt: skip
        """As a worker does, and remember what it was told."""
        endings = [Ending(claim=claim, verdict=verdict) for claim, verdict in ends]
        room = a_room(places, own=own) if places or own else None
        flushed = store.flush(Flush(worker_id=worker, endings=endings, starts=starts, room=room))
        self.handed += flushed.claims
        self.settled += zip(endings, flushed.settlements, strict=True)
        return flushed

    def claim(self, worker: str, places: int = 9, *, own: int = 0) -> list[Claim]:
        """Before the sessions begin."""
        return self.flush(self.main, worker, places=places, own=own).claims

    # -- what must be true --------------------------------------------------------------------------------------------

    def check(self, stage: Stage) -> None:
        wrong = list(self._wrong(stage))
        assert not wrong, "\n".join([*wrong, "in this order:", *stage.trace])

    def _wrong(self, stage: Stage) -> Iterator[str]:
        if stage.is_deadlocked:
            yield "all wait for each other"
        for name, session in stage.sessions.items():
            if session.error is not None:
                yield f"{name} failed: {type(session.error).__name__}: {session.error}"
        yield from self._wrong_owners()
        yield from self._wrong_results()
        yield from self._wrong_limits()
        for key, holders, waiting in self.ask(TURNS):
            if holders > 1 or (waiting and not holders):
                yield f"key {key}: {holders} have the turn, {waiting} wait for it"
        yield from self._lost_wakes()
        mended, stuck, _ = self.main.mend_workflows()
        if mended or stuck:
            yield f"workflows were torn: {mended} {stuck}"
        for (task_id,) in self.ask(ASTRAY):
            yield f"the workflow of {task_id} is gone"
        self._play_to_the_end()
        for row in [*self.ask(NOT_ENDED), *self.ask(LIVE_FLOWS)]:
            yield f"stuck: {row}"

    def _wrong_owners(self) -> Iterator[str]:
        for (task_id, fence), times in Counter((claim.id, claim.fence) for claim in self.handed).items():
            if times > 1:
                yield f"{task_id} was given to {times} owners under fence {fence}"
        found = {task_id: (fence, worker_id) for task_id, _, fence, worker_id, _ in self.ask(STATES)}
        for claim in self.handed:
            fence, worker_id = found[claim.id]
            if fence < claim.fence or (fence == claim.fence and worker_id != claim.worker_id):
                yield f"{claim.worker_id} was given {claim.id}, which is {worker_id}'s under fence {fence}"

    def _wrong_results(self) -> Iterator[str]:
        taken = [
            (ending.claim.id, ending.verdict.result)
            for ending, settlement in self.settled
            if ending.verdict.change is Change.COMPLETE and isinstance(settlement, Settled | Adopted)
        ]
        found = {task_id: (status, result) for task_id, status, _, _, result in self.ask(STATES)}
        for task_id, times in Counter(task_id for task_id, _ in taken).items():
            if times > 1:
                yield f"{times} results of {task_id} were accepted"
        for task_id, result in taken:
            if found[task_id] != ("COMPLETED", result):
                yield f"the result {result!r} of {task_id} was accepted, but it is {found[task_id]}"

    def _left(self) -> Iterator[tuple[str, int]]:
        owned = dict(self.ask(OWNED))
        return ((queue, limit - owned.get(queue, 0)) for queue, limit in self.ask(LIMITS))

    def _wrong_limits(self) -> Iterator[str]:
        return (f"queue {queue} is {-left} above its limit" for queue, left in self._left() if left < 0)

    def _lost_wakes(self) -> Iterator[str]:
        full = {queue for queue, left in self._left() if left <= 0}
        for seq, fence, queue, name in self.ask(READY):
            is_news = (seq, fence) not in self.ready_before or queue in self.full_before
            if is_news and queue not in full and not self.rings.covers(queue, name):
                yield f"nobody was woken for {name} in queue {queue}"

    def _play_to_the_end(self) -> None:
        """Living workers complete what they own, what dead ones left is recovered, and the rest is run."""
        store = self.main
        self.clock.advance(3600)
        for queue in store.queues():
            store.set_paused(queue.name, is_paused=False, actor="me")
        for flow in store.workflows():
            store.change_workflow(WorkflowChange.RESUME, flow.id, actor="me")
        register(store, "heir")
        for _ in range(20):
            alive = {worker.id for worker in store.workers(alive_only=True)}
            for claim in store.orphans(limit=100):
                recover(store, claim, Verdict(change=Change.RECOVER, reason="its worker died"))
            for worker in alive:
                owned = store.owned_by(worker)
                store.flush(Flush(worker_id=worker, starts=[claim for claim in owned if claim.status == "CLAIMED"]))
                for claim in owned:
                    self.flush(store, worker, ends=[(claim, completed())])
            if not self.flush(store, "heir", places=9, own=9).claims:
                return


@contextmanager
def sqlite_ground(path: Path) -> Iterator[Ground]:
    clock = VirtualClock()
    with _opened(lambda: SQLiteStore(path, durability="normal", clock=clock, patience=2.0)) as stores:
        yield Ground(stores, clock)


@contextmanager
def postgres_ground(url: str) -> Iterator[tuple[Ground, psycopg.Connection[Row]]]:
    """And a session that sees who waits for whom."""
    clock = VirtualClock()
    with (
        _opened(lambda: PostgresStore(url, clock=clock, patience=2.0)) as stores,
        psycopg.connect(url, autocommit=True) as control,
    ):
        yield Ground(stores, clock), control


@contextmanager
def _opened(open_one: Callable[[], AnyStore]) -> Iterator[dict[str, AnyStore]]:
    with stepped():
        stores = {name: open_one() for name in NAMES}
        yield stores
        for store in stores.values():
            store.close()
