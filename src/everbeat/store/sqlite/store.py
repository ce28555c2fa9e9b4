"""`Store` on one SQLite file: each verb one transaction, then the bells."""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import compress
from pathlib import Path
from typing import Any

from everbeat.clock import Clock, SystemClock
from everbeat.errors import StoreUnavailable, TaskNotFound
from everbeat.model.event import Event, EventInfo
from everbeat.model.order import Order
from everbeat.model.recovery import Adopted, Leased, Orphan, OrphanClass, RecoveryReport, Settled, Settlement, Verdict
from everbeat.model.state import TaskStatus, target
from everbeat.model.task import Claim, Enqueued, Finished, LateOutcome, NewTask, TaskInfo
from everbeat.model.worker import NewWorker, Standing, WorkerInfo, WorkerState
from everbeat.store.interface import Beat, Flush, Flushed, Held, QueueCount, QueueInfo, StaleTask, TaskFilter
from everbeat.store.sqlite import borrowed, migrate, side
from everbeat.store.sqlite.bells import STOP, Bell, Ringer, digest
from everbeat.store.sqlite.checks import Checks
from everbeat.store.sqlite.connection import REFUSED, Database
from everbeat.store.sqlite.group import GroupCommit
from everbeat.store.sqlite.keeping import Keeping
from everbeat.store.sqlite.place import refuse_shared_place
from everbeat.store.sqlite.site import SQLiteSite
from everbeat.store.transaction import Kind, RowRefused, Transaction
from everbeat.store.verbs import (
    carefully,
    classes,
    commanding,
    counting,
    expiring,
    leasing,
    living,
    looking,
    owning,
    queueing,
    records,
    recovering,
    stopping,
    turns,
    unknown,
)

POLL_SECONDS = 0.5
"""How often a waiter looks without having been woken."""
MENDED_AT_ONCE = 1000
"""So many exclusive keys are looked at in one go."""
SERVED_PER_SECOND = 20
"""How often a sender asks who serves what while somebody unknown listens (a worker about to register, or declared
dead). Until it is known, the stranger is woken for everything."""


class SQLiteStore(SQLiteSite, Keeping, Checks):
    def __init__(
        self,
        path: str | Path,
        *,
        durability: str = "full",
        file_mode: int = 0o600,
        create: bool = True,
        clock: Clock | None = None,
        patience: float = 30.0,
    ) -> None:
        path = Path(path).absolute()
        super().__init__(path)
        refuse_shared_place(path)
        _prepare_file(path, file_mode, create=create)
        self._boot_id = _boot_id()
        self.database = Database(path, durability=durability, clock=clock or SystemClock(), patience=patience)
        self.database.when_forked = self._start_afresh
        try:
            self._open_schema(create=create)
        except BaseException:
            self.database.close()
            raise
        directory = side.directory_of(path)
        self._wake_directory = directory / "wake"
        self._done_directory = directory / "done"
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Also in the child of a fork, where these locks may be held by threads that exist in the parent only."""
        self._ringing = threading.Lock()
        self._wake = Ringer(self._wake_directory)
        self._done = Ringer(self._done_directory)
        self._served: dict[str, living.Served | None] = {}
        self._served_at = 0.0
        self._sending = GroupCommit(self.database, self._ring_for)

    @property
    def store_id(self) -> str:
        """Read each time: a restored store is another one."""
        with self.database.read() as tx:
            return living.store_id(tx)

    def close(self) -> None:
        with self._ringing:
            self._wake.close()
            self._done.close()
        self.database.close()

    def forget(self) -> None:
        """In the child of a fork, for an owner that opens another store: nothing of the parent's is touched."""
        self.database.after_fork_in_child()
        self.close()

    def _open_schema(self, *, create: bool) -> None:
        found = migrate.version_of(self.database)
        if found is None and create:
            found = migrate.create(self.database)
        if found is None:
            raise StoreUnavailable(f"{self.database.path} is not an Everbeat store. Nothing was changed.")
        migrate.check(self.database.path, found)

    # -- sending ----------------------------------------------------------------------------------------------------

    def enqueue(self, tasks: Sequence[NewTask]) -> list[Enqueued]:
        return self._sending.enqueue(tasks)

    def enqueue_on(self, connection: sqlite3.Connection, tasks: Sequence[NewTask]) -> list[Enqueued]:
        return borrowed.enqueue_on(
            connection, tasks, database=self.database, store_id=self.store_id, clock=self.database.clock
        )

    # -- the life of a worker ---------------------------------------------------------------------------------------

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

    # -- the life of a task -----------------------------------------------------------------------------------------

    def flush(self, flush: Flush) -> Flushed:
        try:
            with self.database.write("flush") as tx:
                flushed = carefully.flush(tx, flush) if flush.row_by_row else owning.flush(tx, flush)
        except REFUSED as error:
            raise RowRefused(f"{type(error).__name__}: {error}") from error
        owning.mark_started(flushed.started)
        if flush.endings:
            endings = zip(flushed.settlements, flush.endings, strict=True)
            self._announce_ends(tx, ((settlement, ending.claim, ending.verdict) for settlement, ending in endings))
        return flushed

    def expire(self, *, settle_us: int) -> list[str]:
        with self.database.read() as tx:
            if not expiring.is_due(tx, boot_id=self._boot_id, settle_us=settle_us):
                return []
        with self.database.write() as tx:
            ended = expiring.expire(tx, boot_id=self._boot_id, settle_us=settle_us)
        if ended:
            self._ring_waiters(ended)
            self._ring_workers(None)  # a claim does not look far behind what is in its way
        return ended

    def refuse_unknown(self, *, after_us: int, gap_us: int) -> list[str]:
        with self.database.read() as tx:
            if not unknown.is_due(tx):
                return []
        with self.database.write() as tx:
            failed = unknown.refuse(tx, boot_id=self._boot_id, after_us=after_us, gap_us=gap_us)
        if failed:
            self._ring_waiters(failed)
            self._ring_workers(tx.wakes)
        return failed

    def mend_turns(self, after: str = "") -> str:
        with self.database.read() as tx:
            keys, last = turns.lost(tx, after=after, limit=MENDED_AT_ONCE)
        if keys:
            with self.database.write() as tx:
                turns.hand_over(tx, keys)
            self._ring_workers(tx.wakes)
        return last

    # -- recovery ---------------------------------------------------------------------------------------------------

    def workers(self, *, alive_only: bool = False) -> list[WorkerInfo]:
        with self.database.read() as tx:
            return living.workers(tx, boot_id=self._boot_id, alive_only=alive_only)

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
                tx, worker_id, boot_id=self._boot_id, reason=reason, cause=cause, silent_for_us=silent_for_us,
                unseen_for_us=unseen_for_us,
            )  # fmt: skip

    def requeue_silent_claims(self, silent_for_us: int, *, reason: str) -> int:
        with self.database.write("recover") as tx:
            requeued = recovering.requeue_silent_claims(
                tx, boot_id=self._boot_id, silent_for_us=silent_for_us, reason=reason
            )
        if requeued:
            self._ring_workers(None)
        return requeued

    def orphans(self, *, limit: int, after: Claim | None = None) -> list[Claim]:
        with self.database.read() as tx:
            return recovering.orphans(tx, limit=limit, after=after)

    def owned_by(self, worker_id: str, *, limit: int = 1000, after: int = 0) -> list[Claim]:
        with self.database.read() as tx:
            return recovering.owned_by(tx, worker_id, limit=limit, after=after)

    def owned_ids(self, worker_id: str, *, limit: int) -> list[str]:
        with self.database.read() as tx:
            return recovering.owned_ids(tx, worker_id, limit=limit)

    def count_owned(self, worker_id: str) -> int:
        with self.database.read() as tx:
            return recovering.count_owned(tx, worker_id)

    def count_orphans(self) -> int:
        with self.database.read() as tx:
            return recovering.count_orphans(tx)

    def recover(
        self, verdicts: Sequence[tuple[Orphan, Verdict]], *, actor: str = "system/recovery"
    ) -> list[Settlement]:
        with self.database.write("recover") as tx:
            free = leasing.are_free(tx, verdicts, boot_id=self._boot_id)
            decided = iter(recovering.recover(tx, list(compress(verdicts, free)), actor=actor))
            settlements = [
                next(decided) if is_free else Leased(task_id=orphan.claim.id)
                for is_free, (orphan, _) in zip(free, verdicts, strict=True)
            ]
        ends = zip(settlements, verdicts, strict=True)
        self._announce_ends(tx, ((settlement, orphan.claim, verdict) for settlement, (orphan, verdict) in ends))
        return settlements

    def gone_owners(self) -> list[str | None]:
        with self.database.read() as tx:
            return recovering.gone_owners(tx)

    def orphan_classes(self, owner: str | None, *, after: int, limit: int) -> list[OrphanClass]:
        with self.database.read() as tx:
            return classes.classes_of(tx, owner, after=after, limit=limit)

    def recover_classes(
        self, verdicts: Sequence[tuple[OrphanClass, Verdict]], *, actor: str = "system/recovery"
    ) -> list[bool]:
        with self.database.write("recover") as tx:
            written = [classes.try_class(tx, orphans, verdict, actor) for orphans, verdict in verdicts]
        self._ring_workers(None)
        return written

    def role_holder(self, role: str) -> str | None:
        with self.database.read() as tx:
            return living.role_holder(tx, role, boot_id=self._boot_id)

    def take_role(self, role: str, worker_id: str, *, lease_us: int) -> bool:
        with self.database.write() as tx:
            return living.take_role(tx, role, worker_id, boot_id=self._boot_id, lease_us=lease_us)

    def healthy_for_us(self) -> int:
        with self.database.read() as tx:
            return living.healthy_for_us(tx, self._boot_id)

    def stale_tasks(self, status: TaskStatus, silent_for_us: int) -> list[StaleTask]:
        with self.database.read() as tx:
            return recovering.stale_tasks(tx, status, boot_id=self._boot_id, silent_for_us=silent_for_us)

    def save_report(self, report: RecoveryReport, *, actor: str) -> None:
        with self.database.write() as tx:
            recovering.save_report(tx, report, actor=actor)

    def reports(self, *, limit: int) -> list[RecoveryReport]:
        with self.database.read() as tx:
            return recovering.reports(tx, limit=limit)

    # -- by a person ------------------------------------------------------------------------------------------------

    def cancel(self, task_id: str, *, actor: str) -> bool:
        return any(self.carry_out(Order.CANCEL, TaskFilter(ids=[task_id]), actor=actor))

    def carry_out(self, order: Order, wanted: TaskFilter, *, actor: str, reason: str | None = None,
                  dry_run: bool = False) -> Iterator[list[str]]:  # fmt: skip
        after = 0
        while found := self._fit(order, wanted, after):
            after = found[-1][0]
            yield [task_id for _, task_id in found] if dry_run else self._batch(order, wanted, found, actor, reason)
        if order is Order.ERASE and after and not dry_run:
            self.database.checkpoint("TRUNCATE")  # the log holds what was erased

    def _fit(self, order: Order, wanted: TaskFilter, after: int) -> list[tuple[int, str]]:
        with self.database.read() as tx:
            return commanding.fit(tx, order, wanted, after=after)

    def _batch(self, order: Order, wanted: TaskFilter, found: Sequence[tuple[int, str]], actor: str,
               reason: str | None) -> list[str]:  # fmt: skip
        with self.database.write(wipe=order is Order.ERASE) as tx:
            seqs = [seq for seq, _ in found]
            done, owners = commanding.carry_out(tx, order, wanted, seqs, actor=actor, reason=reason)
        if order.change is not None and done:
            if target(order.change).is_terminal:
                self._ring_waiters(done)
            self._ring_workers(None)  # also for what becomes ready by the end of another
        if owners:
            with self._ringing:
                self._wake.ring(owners.__contains__, STOP)
        return done

    def cancel_requests(self, worker_id: str) -> list[tuple[int, int]]:
        with self.database.read() as tx:
            return stopping.requested_of(tx, worker_id)

    def count_for(self, order: Order, wanted: TaskFilter) -> int:
        with self.database.read() as tx:
            return commanding.count(tx, order, wanted)

    def set_paused(self, queue: str, *, is_paused: bool, actor: str) -> bool:
        with self.database.write() as tx:
            changed = queueing.set_paused(tx, queue, is_paused=is_paused, actor=actor)
        if changed and not is_paused:
            self._ring_workers(None)
        return changed

    def accept(self, task_id: str, *, actor: str) -> bool:
        with self.database.write() as tx:
            accepted = commanding.accept(tx, task_id, actor=actor)
        if accepted:
            self._ring_waiters([task_id])
            self._ring_workers(tx.wakes)
        return accepted

    # -- looking ----------------------------------------------------------------------------------------------------

    def get(self, task_id: str, *, full: bool = True) -> TaskInfo | None:
        with self.database.read(steady=full) as tx:
            return looking.get(tx, task_id, full=full)

    def late_outcomes(self, task_id: str) -> list[LateOutcome]:
        with self.database.read() as tx:
            return looking.late_outcomes(tx, task_id)

    def finished(self, task_id: str) -> Finished | None:
        with self.database.read() as tx:
            exists, end = looking.finished(tx, task_id)
        if not exists:
            raise TaskNotFound(task_id)
        return end

    def tasks(self, wanted: TaskFilter) -> list[TaskInfo]:
        with self.database.read() as tx:
            return looking.tasks(tx, wanted)

    def queues(self) -> list[QueueInfo]:
        with self.database.read() as tx:
            return queueing.queues(tx)

    def counts(self) -> list[QueueCount]:
        with self.database.read(steady=True) as tx:
            return counting.counts(tx)

    def events(self, *, after: int = 0, since: datetime | None = None, task_id: str | None = None,
               limit: int = 1000) -> list[EventInfo]:  # fmt: skip
        with self.database.read() as tx:
            return looking.events(tx, after=after, since=since, task_id=task_id, limit=limit)

    def on_events(self, hear: Callable[[Sequence[Event]], None]) -> None:
        self.database.when_told = hear

    def announce(self, events: Iterable[Event]) -> None:
        with self.database.write() as tx:
            records.add_events(tx, list(events))

    # -- waiting and waking -----------------------------------------------------------------------------------------

    def listen(self, worker_id: str) -> Bell:
        """The bell of a worker; it rings when something may be ready in one of its queues."""
        return Bell(self._made(self._wake_directory), worker_id)

    def data_version(self) -> int:
        return self.database.data_version()

    def wait(self, task_id: str, timeout: float | None) -> Finished | None:
        end = self.finished(task_id)
        if end is not None or timeout == 0:
            return end
        give_up = None if timeout is None else time.monotonic() + timeout
        bell = self._waiting_bell(task_id)
        try:
            while (end := self.finished(task_id)) is None:
                left = POLL_SECONDS if give_up is None else min(POLL_SECONDS, give_up - time.monotonic())
                if left <= 0:
                    return None
                bell.wait(left)
            return end
        finally:
            bell.close()

    async def await_(self, task_id: str, timeout: float | None) -> Finished | None:
        end = await asyncio.to_thread(self.finished, task_id)
        if end is not None or timeout == 0:
            return end
        loop = asyncio.get_running_loop()
        give_up = None if timeout is None else loop.time() + timeout
        bell, rung = await asyncio.to_thread(self._waiting_bell, task_id), asyncio.Event()

        def ring() -> None:
            bell.clear()
            rung.set()

        loop.add_reader(bell.fileno(), ring)
        try:
            while (end := await asyncio.to_thread(self.finished, task_id)) is None:
                left = POLL_SECONDS if give_up is None else min(POLL_SECONDS, give_up - loop.time())
                if left <= 0:
                    return None
                await _wait_for(rung, left)
                rung.clear()
            return end
        finally:
            loop.remove_reader(bell.fileno())
            bell.close()

    def _waiting_bell(self, task_id: str) -> Bell:
        return Bell(self._made(self._done_directory), f"{digest(task_id)}.{os.urandom(4).hex()}")

    def _made(self, directory: Path) -> Path:
        side.make_directory(directory.parent, like=self.database.path)
        return side.make_directory(directory, like=self.database.path)

    def _announce_ends(self, tx: Transaction, ends: Iterable[tuple[Settlement, Claim, Verdict]]) -> None:
        """Wake those who wait for what has ended, and workers for what is ready again."""
        done: list[str] = []
        ready = tx.wakes
        for settlement, claim, verdict in ends:
            if isinstance(settlement, Settled | Adopted):
                if isinstance(settlement, Adopted) or target(settlement.change or verdict.change).is_terminal:
                    done.append(claim.id)
                else:
                    ready.add((claim.queue, claim.name))
        if done:
            self._ring_waiters(done)
        if ready:
            self._ring_workers(ready)

    def _ring_waiters(self, task_ids: Collection[str]) -> None:
        with self._ringing:
            if self._done.listeners():
                ended = {digest(task_id) for task_id in task_ids}
                self._done.ring(lambda name: name.partition(".")[0] in ended)

    def _ring_for(self, tasks: Sequence[NewTask]) -> None:
        self._ring_workers({(kind.queue, kind.name) for kind in {task.kind for task in tasks}})

    def _ring_workers(self, kinds: set[Kind] | None) -> None:
        """Wake every worker that can run one of the kinds (None: any); a busy one finds the task by itself."""
        with self._ringing:
            listeners = self._wake.listeners()
            if listeners - self._served.keys() and time.monotonic() - self._served_at > 1.0 / SERVED_PER_SECOND:
                self._served_at = time.monotonic()
                self._served = self._who_serves()
            self._wake.ring(lambda name: _can_run(self._served.get(name), kinds))

    def _who_serves(self) -> dict[str, living.Served | None]:
        """Ringing comes after a commit and never fails: whoever is not known is woken for everything."""
        try:
            with self.database.read() as tx:
                return dict(living.served(tx))
        except StoreUnavailable:
            return {}


def _can_run(served: living.Served | None, kinds: set[Kind] | None) -> bool:
    return served is None or kinds is None or any(served.covers(*kind) for kind in kinds)


async def _wait_for(rung: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(rung.wait(), seconds)
    except TimeoutError:
        return


def _prepare_file(path: Path, mode: int, *, create: bool) -> None:
    """Make the file with its mode before SQLite opens it. It is given its name only after our own descriptor of it is
    closed: closing that one later would drop the locks of another thread's connection (PROTOCOL 11)."""
    if path.exists():
        return
    if not create:
        raise StoreUnavailable(f"there is no store at {path}")
    fresh = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        fd = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        os.link(fresh, path)
    except FileExistsError:
        return
    except OSError as error:
        raise StoreUnavailable(f"can not create {path}: {error.strerror}") from error
    finally:
        fresh.unlink(missing_ok=True)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
