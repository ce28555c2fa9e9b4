"""A stage for workers under virtual time: the real store, journals, dispatchers and loops; simulated processes.

Nothing happens by itself. A test moves the clock, turns the dispatchers, and says what each process does: it becomes
ready, takes the next task, begins it, ends it, dies. The one fault is a store whose commits fail, before or after they
were made, or because of a lock. What a schedule did once it does every time, which is what a simulation needs.
"""

import os
import sqlite3
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.words import BOOT_ID, VirtualClock, a_worker

from everbeat.config import RecoveryConfig
from everbeat.decide.lease import Lease
from everbeat.errors import StoreUnavailable
from everbeat.model.flow import NODE_ENDS, NodeInfo
from everbeat.model.task import Claim, Outcome, TaskError, TaskInfo
from everbeat.model.worker import Host
from everbeat.report.log import Reporter
from everbeat.run import lockfile
from everbeat.run.deadline import Deadline, HeldLease
from everbeat.run.dispatcher import Dispatcher
from everbeat.run.heartbeat import Heartbeat
from everbeat.run.journal import Journal
from everbeat.run.keeper import Keeper
from everbeat.run.lockfile import WorkerLock
from everbeat.run.news import ChildReady, Died, Finished, News
from everbeat.run.reaper import Reaper
from everbeat.run.recovery import Recovery
from everbeat.run.scribes import Answer
from everbeat.run.slot import LATE_US, SURE_US, Staffing
from everbeat.run.spool import Spool
from everbeat.run.wire import ChildKind, InterruptKind, Told
from everbeat.store.messages import Flush
from everbeat.store.sqlite.connection import SQLiteDatabase
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.transaction import Locked, RowRefused

SYNC_NAMES = frozenset({"add", "sub"})
ASYNC_NAMES = frozenset({"later"})
NODES = "SELECT node, status FROM everbeat_workflow_tasks WHERE workflow_id = ?"
NO_SUCH_PID = 1 << 24
"""Above every pid that a kernel gives out: simulated workers are nobody that is running."""


class Line:
    """The way to a store, which breaks when told to. It counts what it brought through."""

    def __init__(self, database: SQLiteDatabase) -> None:
        self.is_down = False
        self.is_locked = False
        """Somebody has locked all there is."""
        self.commits = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """Done while a commit is on its way."""
        self._fault = ""
        self._locked: dict[str, list[tuple[Any, ...]]] = {}
        self._commit = database._commit
        database._commit = self._carry  # type: ignore[method-assign]

    def break_before_commit(self) -> None:
        self._fault = "before"

    def break_after_commit(self) -> None:
        """The next write is made, and whoever asked for it is told that nobody knows."""
        self._fault = "after"

    def lock(self, workflow_id: str, nodes: list[NodeInfo]) -> None:
        """Somebody holds the rows of its nodes, which are these: whoever changes them meets the lock."""
        self._locked[workflow_id] = [(node.node, node.status) for node in nodes]

    def unlock(self, workflow_id: str) -> None:
        del self._locked[workflow_id]

    def _meet_locks(self, writer: sqlite3.Connection) -> None:
        for workflow_id, known in self._locked.items():
            nodes = writer.execute(NODES, (workflow_id,)).fetchall()
            if [node for node in nodes if node not in known and node[1] in NODE_ENDS]:
                raise Locked(f"somebody has locked {workflow_id}")
        if self.is_locked:
            raise Locked("somebody has locked it")

    def _carry(self, writer: sqlite3.Connection) -> None:
        fault, self._fault = self._fault, ""
        self.meanwhile()
        if self.is_down or fault == "before":
            raise StoreUnavailable("the line is down")
        self._meet_locks(writer)
        self._commit(writer)
        self.commits += 1
        if fault == "after":
            raise StoreUnavailable("the line broke after the commit", maybe_stored=True)


@dataclass(slots=True)
class Child:
    """A process: what was sent to it, what it took, what it has begun, and what it said that was not yet heard."""

    slot: int
    kind: ChildKind
    pid: int
    is_ready: bool = False
    sent: deque[tuple[int, Claim]] = field(default_factory=deque)
    taken: deque[tuple[int, Claim]] = field(default_factory=deque)
    told: list[Told] = field(default_factory=list)
    interrupts: list[str] = field(default_factory=list)
    """Ids of tasks that were told to stop."""
    is_deaf: bool = False
    """Nothing can be told to it at present."""


class SimulatedCrew:
    """The methods of `Crew`, and below them what a test lets the processes do."""

    def __init__(self, journal: Journal, clock: VirtualClock, *, places: int = 1000) -> None:
        self.children: dict[int, Child] = {}
        self.sends: list[str] = []
        """Ids of tasks whose bytes reached a process, in order."""
        self.spawned = 0
        self.places = places
        self.sizes: dict[int, int] = defaultdict(int)
        """Bytes that a process has, by pid."""
        self.silent: set[int] = set()
        self.soon: deque[Callable[[], object]] = deque()
        """What happens, one after the other, while somebody waits."""
        self._news: list[News] = []
        self._journal = journal
        self._clock = clock

    def spawn(self, slot: int, kind: ChildKind) -> None:
        assert slot not in self.children
        self.spawned += 1
        self.children[slot] = Child(slot, kind, pid=1000 + self.spawned)

    def send(self, slot: int, tasks: Sequence[tuple[int, Claim]]) -> bool:
        child = self.children.get(slot)
        if child is None or not child.is_ready or len(child.sent) >= self.places:
            return False
        child.sent.extend(tasks)
        self.sends += [claim.id for _, claim in tasks]
        return True

    def take_back(self, slot: int) -> list[tuple[int, int]]:
        child = self.children.get(slot)
        unread = [(claim.seq, claim.fence) for _, claim in child.sent] if child else []
        if child:
            child.sent.clear()
        return unread

    def kill(self, slot: int) -> None:
        if slot in self.children:
            self.die(slot, -9)

    def release(self, slot: int) -> None:
        if slot in self.children:
            self.die(slot, 0)

    def interrupt(self, slot: int, claim: Claim, kind: InterruptKind) -> bool:
        child = self.children[slot]
        if not child.is_deaf:
            child.interrupts.append(claim.id)
        return not child.is_deaf

    def responsive(self, slot: int) -> bool:
        return slot not in self.silent

    def wait(self) -> bool:
        if self.soon:
            self.soon.popleft()()
            return True
        return False

    def collect(self) -> list[News]:
        for child in self.children.values():
            if child.told:
                self._news.append(Finished(child.slot, child.told))
                child.told = []
        news, self._news = self._news, []
        return news

    # What a test lets them do.

    def tell(self, news: News) -> None:
        self._news.append(news)

    def get_ready(self, *slots: int) -> None:
        """These, or all that are not for a task that runs alone."""
        starting = [child.slot for child in self.children.values() if not child.is_ready]
        for slot in slots or [slot for slot in starting if self.children[slot].kind is not ChildKind.OWN]:
            child = self.children[slot]
            child.is_ready = True
            self._news.append(ChildReady(slot, child.pid))

    def take(self, slot: int) -> str:
        """A process reads the next task. Its code has not begun."""
        child = self.children[slot]
        child.taken.append(child.sent.popleft())
        return child.taken[-1][1].id

    def begin(self, slot: int) -> str:
        """It takes the next task and writes its begin mark."""
        self.take(slot)
        entry, claim = self.children[slot].taken[-1]
        self._journal.begin(entry, claim.seq, claim.fence)
        return claim.id

    def end(self, slot: int, *, result: bytes = b"3", error: TaskError | None = None) -> str:
        """What it began first ends, and it says so."""
        child = self.children[slot]
        entry, claim = child.taken.popleft()
        now = self._clock.wall_us()
        outcome = Outcome(result=None if error else result, error=error, began_at=now, ended_at=now)
        child.told.append((entry, claim.seq, claim.fence, outcome))
        return claim.id

    def run(self, slot: int, **how: Any) -> str:
        self.begin(slot)
        return self.end(slot, **how)

    def die(self, slot: int, status: int | None) -> None:
        child = self.children.pop(slot)
        unread = [(claim.seq, claim.fence) for _, claim in child.sent]
        self._news.append(
            Died(slot=slot, pid=child.pid, status=status, was_ready=child.is_ready, outcomes=child.told,
                 unread=unread, seconds_alive=0.0)
        )  # fmt: skip

    def lose_server(self) -> None:
        """The fork server goes, and every process with it; nobody can say how they ended."""
        for slot in list(self.children):
            self.die(slot, None)


class StagedScribes:
    """Flushes are written when a test says so. Their answers come with the next turn."""

    def __init__(self, store: SQLiteStore, count: int) -> None:
        self.waiting: list[tuple[int, Flush]] = []
        self._store = store
        self._count = count
        self._answers: list[tuple[int, Answer]] = []

    @property
    def is_free(self) -> bool:
        return len(self.waiting) + len(self._answers) < self._count

    def write(self, number: int, flush: Flush) -> None:
        assert self.is_free
        self.waiting.append((number, flush))

    def answers(self) -> list[tuple[int, Answer]]:
        heard, self._answers = self._answers, []
        return heard

    def finish(self, which: int = 0) -> None:
        """One that is under way is done."""
        number, flush = self.waiting.pop(which)
        try:
            answer: Answer = self._store.flush(flush)
        except (StoreUnavailable, RowRefused) as error:
            answer = error
        self._answers.append((number, answer))


class SimulatedWorker:
    """All the parts of a worker's life but its poll loop."""

    def __init__(self, stage: "Stage", worker_id: str, *, processes: int = 2, async_slots: int = 0,
                 frame_depth: int = 64, spool_limit: int = 1 << 20, max_tasks: int | None = None,
                 max_memory: int | None = None, queues: frozenset[str] | None = None, scribes: int = 0,
                 **recovery: Any) -> None:  # fmt: skip
        self.id = worker_id
        self.clock = stage.clock
        self.config = RecoveryConfig(**recovery)
        self.host = Host(name="host-1", boot_id=BOOT_ID, pid=NO_SUCH_PID + stage.count, pid_started=1, pid_namespace=1)
        self.lock = _lock(stage.directory, worker_id, self.host)
        slots = 2 + 2 * max(1, processes)
        self.journal = Journal.create(stage.directory, worker_id, boot_id=BOOT_ID, slots=slots, entries=256)
        self.journal.now_ns = lambda: stage.clock.mono_us() * 1000
        self.crew = SimulatedCrew(self.journal, stage.clock)
        self.store, self.line = stage.open_line()
        staffing = Staffing(
            processes=processes, async_slots=async_slots, sync_names=SYNC_NAMES,
            async_names=ASYNC_NAMES if async_slots else frozenset(), queues=queues, frame_depth=frame_depth,
            max_tasks=max_tasks, max_memory=max_memory,
        )  # fmt: skip
        policy = self.config.to_policy()
        self.spool = Spool(stage.directory, worker_id=worker_id, store_id=stage.store.store_id, limit=spool_limit)
        self.keeper = Keeper(self.spool, stage.clock)
        self.deadline = Deadline.create()
        times = Lease(self.config.exclusive_lease_ms * 1000)
        lease = HeldLease(times, self.deadline, now_us=stage.clock.mono_us)
        self.scribes = StagedScribes(self.store, scribes)
        self.store.flushes_at_once = max(1, scribes)
        self.dispatcher = Dispatcher(
            worker_id=worker_id, hostname="host-1", store=self.store, crew=self.crew, keeper=self.keeper,
            journal=self.journal, staffing=staffing, recovery=policy, lease=lease, clock=stage.clock,
            jitter=lambda: 0.5, resident=self.crew.sizes.__getitem__, scribes=self.scribes if scribes else None,
        )  # fmt: skip
        interval = self.config.runner_heartbeat_interval_ms
        beats, self.beat_line = stage.open_line()
        self.heartbeat = Heartbeat(
            worker_id=worker_id, store=beats, dispatcher=self.dispatcher, recovery=policy, clock=stage.clock,
            interval=interval / 1000, reporter=Reporter(),
        )  # fmt: skip
        judge, self.judge_line = stage.open_line()
        self.recovery = Recovery(judge, self.config, self.host, clock=stage.clock, jitter=lambda: 0.5)
        self.reaper = Reaper(
            worker_id=worker_id, store=judge, recovery=self.recovery, config=self.config, clock=stage.clock,
            reporter=Reporter(),
        )  # fmt: skip
        self.store.register(a_worker(worker_id, host=self.host, lock=self.lock.identity, beat_interval_ms=interval))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.dispatcher.tick()

    def get_up(self) -> None:
        """Every process is started and ready, and what can be claimed is."""
        self.turn()
        self.crew.get_ready()
        self.turn()

    def wait_in_vain(self) -> None:
        """Nothing ends for so long that what waits for it is taken back."""
        for late_us in (LATE_US, SURE_US):
            self.clock.advance(late_us / 1e6)
            self.turn()

    def look(self) -> None:
        """Something may be ready: look."""
        self.dispatcher.wake()
        self.turn()

    def heed(self) -> None:
        """Somebody may want a run to end: look."""
        self.dispatcher.heed()
        self.turn()

    def learn(self, name: str) -> None:
        """This name is known to be quick, so that its tasks are framed."""
        self.dispatcher.pace.saw(name, 10)

    def finish(self) -> None:
        """All flushes that are under way are done, and heard of."""
        while self.scribes.waiting:
            self.scribes.finish()
            self.turn()

    def holds(self) -> list[str]:
        return sorted(held.task_id for held in self.dispatcher.held())

    def vanish(self) -> None:
        """kill -9 of the whole worker: the kernel frees its lock, its files stay."""
        self.lock.close(unlink=False)

    def close(self) -> None:
        """What it holds open is let go; its files stay."""
        self.lock.close(unlink=False)
        self.spool.close()
        self.deadline.close()
        with suppress(ValueError):  # a test has closed it
            self.journal.close(unlink=False)


class Stage:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "stage.db"
        self.clock = VirtualClock()
        self.count = 0
        self._stores: list[SQLiteStore] = []
        self._workers: list[SimulatedWorker] = []
        self.store, _ = self.open_line()
        self.directory = self.store.state_directory

    def open_line(self) -> tuple[SQLiteStore, Line]:
        store = SQLiteStore(self.path, durability="normal", clock=self.clock, patience=2.0)
        self._stores.append(store)
        return store, Line(store.database)

    def worker(self, worker_id: str = "w1", **how: Any) -> SimulatedWorker:
        self.count += 1
        self._workers.append(SimulatedWorker(self, worker_id, **how))
        return self._workers[-1]

    def task(self, task_id: str) -> TaskInfo:
        info = self.store.get(task_id)
        assert info is not None
        return info

    def status(self, *task_ids: str) -> list[str]:
        return [self.task(task_id).status.value for task_id in task_ids]

    def events(self) -> list[str]:
        return [event.name for event in self.store.events()]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for store in self._stores:
            store.close()


def _lock(directory: Path, worker_id: str, host: Host) -> WorkerLock:
    """A lock file of somebody who is not this process, so that it proves a death once it is let go."""
    path = directory / f"worker-{worker_id}.lock"
    path.write_bytes(lockfile._content(worker_id, host))
    return WorkerLock(path, os.open(path, os.O_RDWR))
