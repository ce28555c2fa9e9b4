"""Tells the store that this worker lives, and for which claims.

On a connection and thread of its own, so that nothing the dispatcher does delays it; but only while the dispatcher
really turns, or waits for the store, because a hung one must not keep its tasks alive (PROTOCOL 9). One transaction per
interval, however many tasks are held. What the store shows as ours but we do not hold, twice in a row, is given back;
and no flush that was under way the first time is so the second time: what it has claimed is about to be held.
"""

import random
from collections.abc import Sequence

from everbeat.clock import Clock
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import Cause, Orphan, RecoveryPolicy
from everbeat.model.task import Claim
from everbeat.model.worker import WorkerState
from everbeat.report.log import Reporter
from everbeat.run.cases import Jitter, recover_all
from everbeat.run.dispatcher import Dispatcher
from everbeat.run.files import Files
from everbeat.run.resources import Resources
from everbeat.store.interface import Store
from everbeat.store.messages import Held

HUNG_US = 10_000_000
SNAPSHOT_US = 30_000_000
"""How often a beat brings a picture of the worker, at most."""


WITHOUT_FILES = (
    "somebody has removed them. The worker goes on, but without its lock nobody can prove its death at once, and "
    "without its journal nobody can tell what had begun. Keep others from this directory, and restart the worker"
)


class Heartbeat:
    name = "heartbeat"

    def __init__(self, *, worker_id: str, store: Store, dispatcher: Dispatcher, recovery: RecoveryPolicy, clock: Clock,
                 interval: float, reporter: Reporter, resources: Resources | None = None, files: Files | None = None,
                 jitter: Jitter = random.random) -> None:  # fmt: skip
        self._worker_id = worker_id
        self._store = store
        self._dispatcher = dispatcher
        self._recovery = recovery
        self._clock = clock
        self._interval = interval
        self._reporter = reporter
        self._turns = -1
        self._turned_at = clock.mono_us()
        self._strangers: set[tuple[str, int]] = set()
        self._strangers_at = 0
        """How many flushes had begun when they were seen."""
        self._resources = resources
        self._files = files
        self._lost: list[str] = []
        """Files that are known to be gone."""
        self._jitter = jitter
        self._pictured_at: int | None = None
        self.is_declared_dead = False

    def tick(self) -> float:
        if self.is_declared_dead or self._dispatcher.mandate.is_displaced or not self.dispatcher_turns():
            return min(1.0, self._interval)
        held, sent_at = self._dispatcher.held(), self._dispatcher.lease.now_us()
        beat = self._store.beat(self._worker_id, held, self._picture(held), self._dispatcher.books.seen_beat)
        tally = self._dispatcher.tally
        if not tally.fails_alone and (news := self._reporter.store_returned()):  # a read that goes well proves less
            tally.others_wrote()
            self._store.announce(news)
        if beat.is_older:
            self._dispatcher.mandate.is_displaced = True
        elif not beat.alive:
            self.is_declared_dead = True
        if not beat.alive:
            return self._interval
        self._dispatcher.books.seen_beat = beat.seq
        self._dispatcher.lease.answered(sent_at)
        self._return_strangers(beat.strangers)
        self._look_for_files()
        return self._interval

    def _look_for_files(self) -> None:
        """Somebody who tidies up may take our lock and journal for rubbish. We go on with what we have open; others do
        without the proof and the record."""
        before, self._lost = self._lost, self._files.lost if self._files is not None else []
        if not before and self._lost:
            facts = {"files": self._lost, "reason": WITHOUT_FILES}
            self._store.announce([Event(name=event.FILES_LOST, worker_id=self._worker_id, facts=facts)])

    def _picture(self, held: Sequence[Held]) -> WorkerState | None:
        now = self._clock.mono_us()
        if self._resources is None or (self._pictured_at is not None and now - self._pictured_at < SNAPSHOT_US):
            return None
        self._pictured_at = now
        usage, tally = self._resources.look(), self._dispatcher.tally
        running = sum(one.role == "runner" for one in held)
        return WorkerState(
            tasks_running=running,
            tasks_claimed=len(held) - running,
            tasks_completed=tally.completed,
            tasks_failed=tally.failed,
            store_errors=tally.store_errors,
            memory_usage_mb=usage.memory_mb,
            memory_percent=usage.memory_percent,
            cpu_percent=usage.cpu_percent,
        )

    def dispatcher_turns(self) -> bool:
        """Before its first turn, while its worker recovers what others left, it holds nothing that a beat may keep."""
        now = self._clock.mono_us()
        if self._dispatcher.turns != self._turns or self._dispatcher.flushing.is_waiting:
            self._turns, self._turned_at = self._dispatcher.turns, now
        return self._turns == 0 or now - self._turned_at < HUNG_US

    def _return_strangers(self, strangers: list[Claim]) -> None:
        done = self._dispatcher.flushing.done  # before `held`: what these have claimed is in it
        held = {(one.task_id, one.fence) for one in self._dispatcher.held()}
        unknown = [claim for claim in strangers if (claim.id, claim.fence) not in held]
        if done < self._strangers_at:
            return
        lost = [claim for claim in unknown if (claim.id, claim.fence) in self._strangers]
        self._strangers, self._strangers_at = (
            {(claim.id, claim.fence) for claim in unknown},
            self._dispatcher.flushing.begun,
        )
        evidence = f"worker {self._worker_id} does not hold it"
        orphans = [Orphan(claim=claim, cause=Cause.NEVER_BEGAN, evidence=evidence, is_certain=True) for claim in lost]
        recover_all(self._store, orphans, self._recovery, jitter=self._jitter)
