"""The words in which the tests of the store speak. No test doubles: a real store, driven by hand."""

import gc
import itertools
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from everbeat.decide.room import OWN_PROCESS, Room
from everbeat.model.order import Order
from everbeat.model.recovery import Cause, Orphan, Settlement, Verdict
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim, NewTask, Outcome, TaskError, TaskKind, TaskPolicy
from everbeat.model.worker import Host, LockIdentity, NewWorker, WorkerInfo, WorkerStatus
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush, Flushed, TaskFilter

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
SECOND = 1_000_000
NOON = 1_800_000_000 * SECOND

numbers = itertools.count(1)


class VirtualClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.wall = NOON
        self.mono = 1_000 * SECOND
        self.id = BOOT_ID

    def wall_us(self) -> int:
        return self.wall

    def mono_us(self) -> int:
        return self.mono

    def advance(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND)
        self.mono += round(seconds * SECOND)


# -- facts, for the pure functions ------------------------------------------------------------------------------------

CLAIM = Claim(
    seq=1, id="task-1", name="add", queue="default", fence=1, status=TaskStatus.RUNNING, attempt=1, free_attempts=0,
    crash_count=0, lost_count=0, dispatch_count=0, solo=False, policy=None, args=b"[]", worker_id="w1",
)  # fmt: skip


def a_claim(**facts: Any) -> Claim:
    return replace(CLAIM, **facts)


def a_policy(**facts: Any) -> str | None:
    return TaskPolicy(**facts).dump()


def an_orphan(cause: Cause, **facts: Any) -> Orphan:
    return Orphan(claim=a_claim(**facts), cause=cause, evidence="process 7 killed by SIGSEGV")


def an_error(code: str = "UNHANDLED_EXCEPTION", *lineage: str) -> TaskError:
    return TaskError(code=code, message="it broke", exception_type="builtins.ValueError", lineage=lineage)


# -- deeds, on a store ------------------------------------------------------------------------------------------------


def a_task(**facts: Any) -> NewTask:
    plain: dict[str, Any] = {"id": f"task-{next(numbers)}", "name": "add", "args": b"[1,2]"}
    given = plain | facts
    own = {name: given.pop(name) for name in ("id", "args", "unique_key", "is_new") if name in given}
    return NewTask(**own, kind=TaskKind(**given))


def enqueue(store: Store, **facts: Any) -> str:
    (stored,) = store.enqueue([a_task(**facts)])
    return stored.id


def a_worker(worker_id: str, **facts: Any) -> NewWorker:
    plain: dict[str, Any] = {
        "id": worker_id,
        "name": worker_id,
        "host": Host(name="host-1", boot_id=BOOT_ID, pid=4711, pid_started=1, pid_namespace=1),
        "lock": LockIdentity(path="/nowhere", device=1, inode=1),
        "queues": None,
        "task_names": ("add", "sub", "later"),
        "processes": 2,
        "async_slots": 0,
        "beat_interval_ms": 30_000,
        "version": "test",
    }
    return NewWorker(**(plain | facts))


def a_worker_info(worker_id: str, *, pid: int, status: WorkerStatus = WorkerStatus.DEAD) -> WorkerInfo:
    new, now = a_worker(worker_id), datetime.fromtimestamp(NOON / SECOND, UTC)
    return WorkerInfo(
        id=worker_id, name=new.name, status=status, host=replace(new.host, pid=pid), lock=new.lock,
        queues=None, processes=2, async_slots=0, beat_interval_ms=1000, version="test", started_at=now,
        last_beat_at=now, silent_for_us=0, same_clock=True, ended_at=None, end_reason=None, held=0,
    )  # fmt: skip


def register(store: Store, worker_id: str, **facts: Any) -> str:
    store.register(a_worker(worker_id, **facts))
    return worker_id


def a_room(places: int = 1, *, own: int = 0, queues: Collection[str] | None = None) -> Room:
    """Sync places for every task the tests know; `own` processes for the async one, "later"."""
    return Room(
        sync_names=frozenset({"add", "sub"}),
        async_names=frozenset({"later"}),
        queues=None if queues is None else frozenset(queues),
        slots=dict.fromkeys(range(1, places + 1), 0),
        own_free=own,
    )


def claim(store: Store, worker: str = "w1", places: int = 1, **facts: Any) -> list[Claim]:
    return store.flush(Flush(worker_id=worker, room=a_room(places, **facts))).claims


def claim_one(store: Store, worker: str = "w1") -> Claim:
    """Registers the worker if nobody has; the task runs."""
    if not any(known.id == worker for known in store.workers()):
        register(store, worker)
    (taken,) = claim(store, worker)
    return taken


def claim_alone(store: Store, worker: str = "w1") -> Claim:
    """A task that must run alone, and waits CLAIMED for its process."""
    (taken,) = claim(store, worker, 0, own=1)
    assert taken.slot == OWN_PROCESS
    return taken


def settle(store: Store, taken: Claim, verdict: Verdict, *, outcome: Outcome | None = None) -> Settlement:
    ending = Ending(claim=taken, verdict=verdict, outcome=outcome, pid=99)
    (settlement,) = store.flush(Flush(worker_id=taken.worker_id or "", endings=[ending])).settlements
    return settlement


def start(store: Store, *claims: Claim) -> Flushed:
    return store.flush(Flush(worker_id=claims[0].worker_id or "", starts=claims))


def requeue(store: Store, taken: Claim, *, reason: str = "worker silent for 41s", billed: bool = True) -> Settlement:
    return recover(store, taken, Verdict(change=Change.RECOVER, reason=reason, billed=billed))


def recover(store: Store, taken: Claim, verdict: Verdict) -> Settlement:
    orphan = Orphan(claim=taken, cause=Cause.LOST, evidence=verdict.reason or "", is_certain=True)
    (settlement,) = store.recover([(orphan, verdict)])
    return settlement


def carry_out(store: Store, order: Order, *ids: str, actor: str = "me", **wanted: Any) -> list[str]:
    """A person's order about these tasks; those it was carried out on."""
    return [done for batch in store.carry_out(order, TaskFilter(ids=ids, **wanted), actor=actor) for done in batch]


def completed(result: bytes = b"3") -> Verdict:
    return Verdict(change=Change.COMPLETE, result=result)


def succeeded(result: bytes = b"3") -> Outcome:
    return Outcome(result=result, began_at=NOON, ended_at=NOON + 5)


def raised(error: TaskError | None = None) -> Outcome:
    return Outcome(error=error or an_error(), began_at=NOON, ended_at=NOON + 5)


def failed(reason: str = "UNHANDLED_EXCEPTION: no attempts left (1/1)") -> Verdict:
    return Verdict(change=Change.FAIL, error=an_error(), reason=reason)


def retried(delay_us: int = 0) -> Verdict:
    return Verdict(change=Change.RETRY, error=an_error(), reason="attempt 1 of 3 failed", delay_us=delay_us)


def abandoned(**facts: Any) -> Verdict:
    error = TaskError(code="WORKER_CRASHED", message="its worker died")
    return Verdict(change=Change.ABANDON, error=error, reason="its worker died")._replace(**facts)


def handed_back() -> Verdict:
    return Verdict(change=Change.HAND_BACK, reason="its worker stops", billed=False)


def status_of(store: Store, task_id: str) -> TaskStatus:
    info = store.get(task_id, full=False)
    assert info is not None
    return info.status


def facts_of(store: Store, task_id: str, *names: str) -> tuple[Any, ...]:
    info = store.get(task_id)
    return tuple(getattr(info, name) for name in names)


def ids(claims: Sequence[Claim]) -> list[str]:
    return [taken.id for taken in claims]


def interrupted_after(calls: int, deed: Callable[[], object]) -> bool:
    """Interrupt it after so many calls, or as the first thing within one, as a signal handler that raises does.
    False: the deed was done before."""
    left = calls

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    gc.disable()  # or it may come in the finalizer of something else, and be lost
    sys.setprofile(count)
    try:
        deed()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False
