"""`everbeat queue`: how much waits, runs and failed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import typer

from everbeat.cli import out, which
from everbeat.model.order import Order
from everbeat.model.state import TaskStatus
from everbeat.model.worker import WorkerStatus
from everbeat.report.text import Column, ago, clean, counted
from everbeat.store.interface import QueueCount, Store, TaskFilter

app = typer.Typer(help="Queues.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _queue() -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    queue: str
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
    """Count tasks by queue and status, with workers and quarantine."""
    with which.existing_store(db, app) as store:
        queues = _by_queue(store.counts(), datetime.now(UTC))
        found = [worker.status for worker in store.workers()]
        state = StoreState(
            store=store.location,
            queues=queues,
            workers={str(status): found.count(status) for status in WorkerStatus},
            quarantined=store.count_for(Order.DISCARD, TaskFilter()),
            blocked_by=_blocked_by(store),
        )
    if as_json:
        out.data(state)
    else:
        _show(state)


def _show(state: StoreState) -> None:
    now = datetime.now(UTC)
    out.rows(
        [Column("QUEUE"), *(Column(status, right=True) for status in TaskStatus), Column("OLDEST WAITS SINCE")],
        [[q.queue, *q.counts.values(), ago(q.oldest_runnable_at, now)] for q in state.queues],
        empty="No tasks.",
    )
    out.say(f"\nstore: {clean(state.store)}")
    out.say("workers: " + ", ".join(f"{count} {status}" for status, count in state.workers.items()))
    if state.quarantined:
        out.say(f"quarantine: {counted(state.quarantined, 'task')} (everbeat quarantine list)")
    if state.blocked_by:
        out.say(f"store blocked by {state.blocked_by}: nobody can write until it goes on or ends")


def _by_queue(counts: Sequence[QueueCount], now: datetime) -> list[QueueState]:
    return [_state(name, [count for count in counts if count.queue == name], now)
            for name in dict.fromkeys(count.queue for count in counts)]  # fmt: skip


def _state(name: str, counts: Sequence[QueueCount], now: datetime) -> QueueState:
    found = {count.status: count for count in counts}
    pending = found.get(TaskStatus.PENDING)
    oldest = pending.oldest_run_at if pending else None
    return QueueState(
        queue=name,
        counts={str(status): found[status].count if status in found else 0 for status in TaskStatus},
        oldest_runnable_at=oldest if oldest is not None and oldest <= now else None,
    )


def _blocked_by(store: Store) -> str | None:
    """A process that was stopped while it held the write lock (PROTOCOL 16)."""
    blocker = store.blocker()
    return str(blocker) if blocker is not None and blocker.is_stopped else None
