"""One simulated worker under one id: the real loops, put together as run/outfit.py and run/life.py do it."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Protocol, cast

from tests.run.stage import ASYNC_NAMES, NO_SUCH_PID, SYNC_NAMES, _lock
from tests.sim.deleted import QuickDays, keeping
from tests.sim.line import Killed, Line
from tests.sim.processes import Ground, Processes
from tests.words import BOOT_ID, SECOND, VirtualClock, a_worker

from everbeat.config import RecoveryConfig
from everbeat.decide.lease import Lease
from everbeat.errors import StoreUnavailable
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import Orphan, Settled, Settlement, Verdict
from everbeat.model.worker import Host
from everbeat.report.log import Reporter
from everbeat.run.deadline import Deadline, HeldLease
from everbeat.run.dispatcher import Dispatcher
from everbeat.run.heartbeat import Heartbeat
from everbeat.run.janitor import Janitor
from everbeat.run.journal import Journal
from everbeat.run.keeper import Keeper
from everbeat.run.leases import LeaseKeeper
from everbeat.run.life import DISMISS_US, POLL_US
from everbeat.run.reaper import Reaper
from everbeat.run.recovery import Recovery
from everbeat.run.scribes import Answer
from everbeat.run.slot import Staffing
from everbeat.run.spool import Spool
from everbeat.run.startup import Startup
from everbeat.store.interface import Store
from everbeat.store.messages import Flush
from everbeat.store.transaction import RowRefused

CONFIG = RecoveryConfig(
    runner_heartbeat_interval_ms=1000, claimer_heartbeat_interval_ms=1000, running_stale_threshold_ms=4000,
    claimed_stale_threshold_ms=2000, check_interval_ms=1000, exclusive_lease_ms=8000, integrity_check_on_startup=False,
)  # fmt: skip

KEPT_AFTER_US = 3_000_000
"""What a worker that does not stand still was told is in the store or in its spool by then."""


class SkewedClock:
    """A wall clock that is wrong."""

    def __init__(self, clock: VirtualClock, skew_us: int) -> None:
        self._clock = clock
        self._skew_us = skew_us
        self.id = clock.id

    def wall_us(self) -> int:
        return self._clock.wall_us() + self._skew_us

    def mono_us(self) -> int:
        return self._clock.mono_us()


class Scribes:
    """Each flush is written in a loop of its own, some time after it was sent; the dispatcher goes on meanwhile."""

    def __init__(self, worker: "Worker", count: int) -> None:
        self._worker = worker
        self._free = [f"dispatcher/{number}" for number in range(count)]
        self._jobs: dict[str, tuple[int, Flush]] = {}
        self._answers: list[tuple[str, int, Answer]] = []

    @property
    def is_free(self) -> bool:
        return bool(self._free)

    def write(self, number: int, flush: Flush) -> None:
        loop = self._free.pop(self._worker.random.randrange(len(self._free)))
        self._jobs[loop] = number, flush
        self._worker.soon(loop)

    def answers(self) -> list[tuple[int, Answer]]:
        heard, self._answers = self._answers, []
        self._free += [loop for loop, _, _ in heard]
        return [(number, answer) for _, number, answer in heard]

    def turn(self, loop: str) -> None:
        number, flush = self._jobs.pop(loop)
        try:
            answer: Answer = self._worker.store.flush(flush)
        except (StoreUnavailable, RowRefused) as error:
            answer = error
        self._answers.append((loop, number, answer))
        self._worker.soon("dispatcher")


class Surroundings(Ground, Protocol):
    """What a worker needs of the world."""

    def soon(self, worker: "Worker", loop: str, seconds: float) -> None:
        """The next turn of this loop."""

    def pass_time(self, worker: "Worker", loop: str, seconds: float) -> bool:
        """Everybody else goes on. False: no more can happen inside of what happens already."""

    def open_store(self, who: "Worker") -> tuple[Store, Line]: ...


class Worker:
    def __init__(
        self, world: Surroundings, place: int, number: int, seed: int, *, processes: int, async_slots: int,
        is_first: bool, has_proof: bool, skew: float, keeps: int, keeps_workers: int,
    ) -> None:  # fmt: skip
        self.id = f"w{number}"
        self.place = place
        self.is_first = is_first
        """Otherwise it goes on after it was declared dead, with a new id."""
        self.is_gone = False
        self.end = "runs"
        """dead: killed; fenced; stopped; refused: it did not get as far as to work."""
        self.stopped_until = 0
        self.is_hindered = False
        """It stood still for a while, or some call of it took long."""
        self.died_at = 0
        self.busy: dict[str, int] = {}
        """Loops that are in a call, and until when at least."""
        self.random = Random(f"worker {seed} {number}")
        self._patience = self.random.choice((1, 4, 4, 4))
        """Most reapers look more rarely than a real one: most of their looks find nothing."""
        self._world = world
        self._processes = processes
        self._async_slots = async_slots
        self._has_proof = has_proof
        self._keeps = keeps
        self._keeps_workers = keeps_workers
        self._clock = SkewedClock(world.clock, round(skew * SECOND))
        self._version = -1
        self._asked_at = 0
        self._recovered: list[str] = []
        """Tasks, in this turn of recovery."""
        self.recovered: list[str] = []
        """Tasks, in all turns that came to their end: a report tells of each."""
        self.host = Host(name="host-1", boot_id=BOOT_ID, pid=NO_SUCH_PID + number, pid_started=1, pid_namespace=1)
        self.store, self.line = world.open_store(self)
        self._watch(self.store)
        self._make_files()
        self._make_loops()

    def _watch(self, store: Store) -> None:
        recover = store.recover

        def watched(verdicts: Sequence[tuple[Orphan, Verdict]]) -> list[Settlement]:
            said = recover(verdicts)
            self._recovered += [one.task_id for one in said if isinstance(one, Settled)]
            return said

        store.recover = watched  # type: ignore[method-assign]

    def _make_files(self) -> None:
        directory = self.store.state_directory
        self.lock = _lock(directory, self.id, self.host)
        slots = 2 + 2 * self._processes
        self.journal = Journal.create(directory, self.id, boot_id=BOOT_ID, slots=slots, entries=64)
        self.journal.now_ns = lambda: self._world.clock.mono_us() * 1000
        self.deadline = Deadline.create()
        self.crew = Processes(
            self._world, self.journal, self.deadline, self.id, self.random,
            lambda: self.soon("dispatcher"), async_slots=self._async_slots,
        )  # fmt: skip

    def _make_loops(self) -> None:
        clock, policy, jitter, reporter = self._clock, CONFIG.to_policy(), self.random.random, Reporter()
        spool = Spool(self.store.state_directory, worker_id=self.id, store_id="sim")
        self.keeper = Keeper(spool, clock)
        staffing = Staffing(
            processes=self._processes, async_slots=self._async_slots, sync_names=SYNC_NAMES,
            async_names=ASYNC_NAMES if self._async_slots else frozenset(), queues=None, frame_depth=8,
        )  # fmt: skip
        lease = HeldLease(Lease(CONFIG.exclusive_lease_ms * 1000), self.deadline, now_us=clock.mono_us)
        count = self.random.choice((0, 1, 2, 2))
        self._scribes = Scribes(self, count) if count else None
        self.dispatcher = Dispatcher(
            worker_id=self.id, hostname="host-1", store=self.store, crew=self.crew, keeper=self.keeper,
            journal=self.journal, staffing=staffing, recovery=policy, lease=lease, clock=clock, jitter=jitter,
            resident=lambda pid: 0, scribes=self._scribes,
        )  # fmt: skip
        self.heartbeat = Heartbeat(
            worker_id=self.id, store=self.store, dispatcher=self.dispatcher, recovery=policy, clock=clock,
            interval=CONFIG.runner_heartbeat_interval_ms / 1000, reporter=reporter, jitter=jitter,
        )  # fmt: skip
        recovery = Recovery(self.store, CONFIG, self.host, clock=clock, jitter=jitter)
        self.reaper = Reaper(
            worker_id=self.id, store=self.store, recovery=recovery, config=CONFIG, clock=clock, reporter=reporter,
        )  # fmt: skip
        self.lease_keeper = LeaseKeeper(
            worker_id=self.id, store=self.store, dispatcher=self.dispatcher, heartbeat=self.heartbeat
        )
        self.janitor = self._a_janitor()
        self._reporter = reporter

    def _a_janitor(self) -> Janitor:
        if not self._keeps:
            return Janitor(worker_id=self.id, store=self.store, config=CONFIG, clock=self._clock)
        quick, config = cast(Store, QuickDays(self.store)), keeping(self._keeps, self._keeps_workers)
        return Janitor(worker_id=self.id, store=quick, config=config, clock=self._clock)

    def soon(self, loop: str) -> None:
        self._world.soon(self, loop, 0.0)

    # -- its turns --------------------------------------------------------------------------------------------------

    def turn(self, loop: str) -> float | None:
        """The seconds until the next; None if there is none."""
        match loop:
            case "startup":
                return self._start()
            case "dispatcher":
                return self._dispatch()
            case "heartbeat":
                return self.heartbeat.tick()
            case "reaper":
                self._recovered.clear()
                wait = self._patience * self.reaper.tick()
                self.recovered += self._recovered
                return wait
            case "keeper":
                return self.keeper.tick()
            case "lease":
                return self.lease_keeper.tick()
            case "dispatcher/0" | "dispatcher/1" if self._scribes is not None:
                return self._scribes.turn(loop)
            case _:
                wait = self.janitor.tick()
                return min(wait, 1.0) if self._keeps else wait

    def _start(self) -> None:
        """As `Life.recover`, `register` and `begin`. One that can not reach its store ends, and another is started."""
        clock, actor = self._clock, f"startup/{self.id}"
        try:
            if self.is_first:
                Startup(
                    store=self.store, config=CONFIG, me=self.host, clock=clock, reporter=self._reporter, actor=actor,
                    jitter=self.random.random,
                ).run()  # fmt: skip
            else:
                Recovery(self.store, CONFIG, self.host, clock=clock, jitter=self.random.random).run(actor=actor)
        except StoreUnavailable:
            self._leave("refused", stay=False)
            return
        self.recovered += self._recovered
        try:
            lock = self.lock.identity if self._has_proof else replace(self.lock.identity, inode=0)
            new = a_worker(
                self.id, host=self.host, lock=lock, processes=self._processes,
                task_names=tuple(sorted(SYNC_NAMES | ASYNC_NAMES)),
                beat_interval_ms=CONFIG.runner_heartbeat_interval_ms,
            )  # fmt: skip
            self.store.register(replace(new, exclusive_lease_ms=CONFIG.exclusive_lease_ms))
        except StoreUnavailable as error:
            self._leave("refused", stay=error.maybe_stored)
            return
        self.keeper.spool._store_id = self.store.store_id
        self._asked_at = clock.mono_us()
        for loop in ("dispatcher", "heartbeat", "reaper", "keeper", "lease", "janitor"):
            self._world.soon(self, loop, self.random.uniform(0.0, 0.05))

    def _dispatch(self) -> float | None:
        now = self._world.clock.mono_us()
        if now - self._asked_at >= POLL_US:
            self._asked_at = now
            self._look_for_changes()
        self.dispatcher.tick()
        if self.heartbeat.is_declared_dead or self.dispatcher.mandate.is_fenced:
            self._finish("fenced")
            return None
        if self.dispatcher.is_drained:
            self._finish("stopped")
            return None
        return min(self.dispatcher.wait_us(), POLL_US) / 1e6

    def _look_for_changes(self) -> None:
        try:
            version = self.store.data_version()
        except StoreUnavailable:
            return
        if version != self._version:
            self._version = version
            self.dispatcher.wake()
            self.dispatcher.heed()

    # -- its end ----------------------------------------------------------------------------------------------------

    def _finish(self, end: str) -> None:
        """As `Life.end`."""
        self.end = end
        self.dispatcher.dismiss()
        give_up_at = self._world.clock.mono_us() + DISMISS_US
        while not self.dispatcher.is_dismissed and self._world.clock.mono_us() < give_up_at:
            if not self._world.pass_time(self, "dispatcher", 0.1):
                break
            if self.is_gone:
                raise Killed
            self.dispatcher.tick()
        self.dispatcher.keep_rest()
        stay = True
        try:
            if end == "fenced":
                self.store.announce([Event(name=event.WORKER_FENCED, worker_id=self.id, facts={})])
            else:
                self.store.retire(self.id, {})
            stay = bool(self.store.owned_by(self.id, limit=1)) or not self.dispatcher.is_dismissed
        except StoreUnavailable:
            pass
        self.keeper.spool.close()
        self._leave(end, stay=stay)

    def _leave(self, end: str, *, stay: bool) -> None:
        self.end, self.is_gone = end, True
        self.crew.end_all()
        self.lock.close(unlink=not stay)
        if not stay:
            self.journal.path.unlink(missing_ok=True)

    def is_held(self, loop: str, at: int) -> bool:
        """Whether this loop can not turn now: its process is stopped, or it is in a call."""
        return self.stopped_until > at or loop in self.busy

    def is_busy(self, at: int) -> bool:
        return not self.is_gone and (self.stopped_until > at or not self.dispatcher.books.are_clear)

    @property
    def has_left_outcomes(self) -> bool:
        """In its spool, and nobody has given them to the store yet."""
        return self.is_gone and self.keeper.spool.path.exists()

    def die(self) -> None:
        """kill -9: the kernel frees its lock, its files stay."""
        if not self.is_gone:
            self.died_at = self._world.clock.mono_us()
            self._leave("dead", stay=True)

    def had_time_for(self, told_at: int) -> bool:
        """Whether it was killed long after it could have kept what it was told."""
        return not self.is_hindered and self.died_at - told_at > KEPT_AFTER_US

    @property
    def is_stopping(self) -> bool:
        return self.is_gone or self.end != "runs" or self.dispatcher.mandate.is_closing

    def close(self) -> None:
        self.lock.close(unlink=False)
        self.journal.close(unlink=False)
        self.deadline.close()
        self.store.close()
