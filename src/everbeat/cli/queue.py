"""`everbeat queue`: how much waits, runs and failed; pause and resume. Its recovery commands are in `recovery.py`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from everbeat.cli import given, out, which
from everbeat.cli.grammar import Argument, Group
from everbeat.cli.person import actor
from everbeat.model.order import Order
from everbeat.model.state import TaskStatus
from everbeat.model.worker import WorkerStatus
from everbeat.report.text import Column, ago, clean, counted
from everbeat.store.interface import Store
from everbeat.store.messages import QueueCount, QueueInfo, TaskFilter

app = Group("Queues: counts, pause and resume, recovery.")

HELD_SECONDS = 1.0
"""One transaction that is open for so long keeps others waiting."""
LOOK_SECONDS = 0.05

Queue = Annotated[str, Argument(metavar="QUEUE", help="A queue needs no declaration: any name will do.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    queue: str
    paused: bool
    max_concurrency: int | None
    counts: dict[str, int]
    """One entry for each status, also when it is 0."""
    oldest_runnable_at: datetime | None
    """Since when the oldest task waits that could run now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    store: str
    queues: list[QueueState]
    workers: dict[str, int]
    quarantined: int
    blocked_by: str | None


@app.command()
def status(db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Count tasks by queue and status; and workers."""
    with which.existing_store(db, app) as store:
        queues = _by_queue(store.counts(), store.queues())
        found = [worker.status for worker in store.workers()]
        state = StoreState(
            store=store.location,
            queues=queues,
            workers={str(status): found.count(status) for status in WorkerStatus},
            quarantined=store.count_for(Order.DISCARD, TaskFilter()),
            blocked_by=_blocked_by(store),
        )
        now = store.now()
    if as_json:
        out.data(state)
    else:
        _show(state, now)


def _show(state: StoreState, now: datetime) -> None:
    out.rows(
        [
            Column("QUEUE"),
            *(Column(status, right=True) for status in TaskStatus),
            Column("LIMIT", right=True),
            Column("OLDEST WAITS SINCE"),
        ],
        [
            [q.queue, *q.counts.values(), q.max_concurrency, "paused" if q.paused else ago(q.oldest_runnable_at, now)]
            for q in state.queues
        ],
        empty="No tasks.",
    )
    out.say(f"\nstore: {clean(state.store)}")
    out.say("workers: " + ", ".join(f"{count} {status}" for status, count in state.workers.items()))
    if state.quarantined:
        out.say(f"quarantine: {counted(state.quarantined, 'task')} (everbeat quarantine list)")
    if state.blocked_by:
        out.say(f"store blocked by {state.blocked_by}: nobody can write until it goes on or ends")


def _by_queue(counts: Sequence[QueueCount], known: Sequence[QueueInfo]) -> list[QueueState]:
    settings = {queue.name: queue for queue in known}
    names = sorted({count.queue for count in counts} | {queue.name for queue in known if queue.paused})
    return [_state(name, [c for c in counts if c.queue == name], settings.get(name)) for name in names]


def _state(name: str, counts: Sequence[QueueCount], setting: QueueInfo | None) -> QueueState:
    is_paused = setting is not None and setting.paused
    found = {count.status: count for count in counts}
    pending = found.get(TaskStatus.PENDING)
    return QueueState(
        queue=name,
        paused=is_paused,
        max_concurrency=None if setting is None else setting.max_concurrency,
        counts={str(status): found[status].count if status in found else 0 for status in TaskStatus},
        oldest_runnable_at=pending.oldest_run_at if pending and not is_paused else None,
    )


def _blocked_by(store: Store) -> str | None:
    """A process that was stopped while it held the write lock (PROTOCOL 16), or that keeps it and commits nothing. Who
    is only busy commits meanwhile."""
    blocker, version = store.blocker(), store.data_version()
    give_up = time.monotonic() + HELD_SECONDS
    while blocker is not None and not blocker.is_stopped and time.monotonic() < give_up:
        time.sleep(LOOK_SECONDS)
        found = store.blocker()
        if found is None or found.pid != blocker.pid or store.data_version() != version:
            return None
        blocker = found
    return None if blocker is None else str(blocker)


# -- pause and resume -------------------------------------------------------------------------------------------------


@app.command()
def pause(queue: Queue, db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Start nothing more from this queue until it is resumed. What runs goes on; sending goes on."""
    _set_paused(queue, True, db, app, as_json=as_json)


@app.command()
def resume(queue: Queue, db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Let tasks of a paused queue start again."""
    _set_paused(queue, False, db, app, as_json=as_json)


def _set_paused(queue: str, is_paused: bool, db: str | None, app: str | None, *, as_json: bool) -> None:
    given.name(queue, "queue")
    with which.existing_store(db, app) as store:
        changed = store.set_paused(queue, is_paused=is_paused, actor=actor())
        setting = next((known for known in store.queues() if known.name == queue), None)
        state = _state(queue, [c for c in store.counts() if c.queue == queue], setting)
    waiting, running = state.counts[TaskStatus.PENDING], state.counts[TaskStatus.RUNNING]
    if as_json:
        out.data({"queue": queue, "paused": is_paused, "changed": changed, "counts": state.counts})
        return
    now = "paused" if is_paused else "resumed"
    said = (
        f"queue {queue} is {now}"
        if changed
        else f"queue {queue} {'was paused already' if is_paused else 'was not paused'}"
    )
    out.say(f"{said}: {counted(waiting, 'task')} {'wait' if waiting != 1 else 'waits'}, {running} running")
