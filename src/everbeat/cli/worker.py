"""`everbeat worker`: `list`. `start` and `health` have modules of their own."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from everbeat.cli import out, start, which
from everbeat.cli.grammar import Group, Option
from everbeat.config import RecoveryConfig
from everbeat.model.worker import WorkerHeartbeatStatus, WorkerInfo, WorkerStatus
from everbeat.report.text import Column, ago, span
from everbeat.store.interface import Store

app = Group("Start and list workers.")
app.command("start")(start.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker as `worker list --json` shows it."""

    id: str
    name: str
    status: WorkerStatus
    is_alive: bool
    """False also for one that still counts as alive in the store, but whose process is proven gone or silent."""
    hostname: str
    pid: int
    queues: tuple[str, ...] | None
    processes: int
    async_slots: int
    held_tasks: int
    current_task_id: str | None
    version: str
    started_at: datetime
    last_heartbeat: datetime
    heartbeat_age: timedelta
    heartbeat_interval: timedelta
    has_session: bool | None
    """On PostgreSQL: whether it holds its session. Behind a pooler nobody does."""
    ended_at: datetime | None
    end_reason: str | None


@app.command("list")
def list_(
    show_heartbeat: Annotated[
        bool, Option("--show-heartbeat", help="Add the last heartbeat, its age and interval, and the session.")
    ] = False,
    status: Annotated[list[WorkerStatus] | None, Option(help="Only these; may be repeated.")] = None,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """List workers: the living, and those that stopped or died."""
    config = which.config_for(db, app)
    with which.existing(config) as store:
        now = store.now()
        rows = worker_rows(store, config.recovery, now)
    wanted = [row for row in rows if not status or row.status in status]
    if as_json:
        out.data(wanted)
    else:
        _show(wanted, now, show_heartbeat=show_heartbeat)


def worker_rows(store: Store, recovery: RecoveryConfig, now: datetime) -> list[WorkerRow]:
    from everbeat.run.manual import ByHand  # lazily: most commands need nothing of what runs a store

    workers = {worker.id: worker for worker in store.workers()}
    beats = ByHand(store, recovery).get_worker_status()
    holders = store.session_holders()
    return [_row(workers[beat.worker_id], beat, holders, now) for beat in beats if beat.worker_id in workers]


def _row(worker: WorkerInfo, beat: WorkerHeartbeatStatus, holders: Collection[str] | None, now: datetime) -> WorkerRow:
    return WorkerRow(
        id=worker.id,
        name=worker.name,
        status=worker.status,
        is_alive=beat.is_alive,
        hostname=worker.host.name,
        pid=worker.host.pid,
        queues=worker.queues,
        processes=worker.processes,
        async_slots=worker.async_slots,
        held_tasks=worker.held,
        current_task_id=beat.current_task_id,
        version=worker.version,
        started_at=worker.started_at,
        last_heartbeat=worker.last_beat_at,
        heartbeat_age=beat.age if worker.same_clock else now - worker.last_beat_at,
        heartbeat_interval=timedelta(milliseconds=worker.beat_interval_ms),
        has_session=None if holders is None else worker.id in holders,
        ended_at=worker.ended_at,
        end_reason=worker.end_reason,
    )


def _show(rows: Sequence[WorkerRow], now: datetime, *, show_heartbeat: bool) -> None:
    columns = [Column("ID"), Column("STATUS"), Column("HOST", wraps=True), Column("PID", right=True), Column("SLOTS"),
               Column("QUEUES", wraps=True), Column("TASKS", right=True), Column("STARTED")]  # fmt: skip
    if show_heartbeat:
        columns += [Column("LAST HEARTBEAT"), Column("AGE", right=True), Column("EVERY", right=True)]
        columns += [Column("SESSION")] * any(row.has_session is not None for row in rows)
    out.rows(
        [*columns, Column("ENDED", wraps=True)],
        [_cells(row, now, show_heartbeat=show_heartbeat) for row in rows],
        empty="No workers.",
    )
    if any(is_lost(row) for row in rows):
        out.say("\nlost: its process is gone or silent. Any worker that runs or starts will recover its tasks.")


def _cells(row: WorkerRow, now: datetime, *, show_heartbeat: bool) -> list[object]:
    cells: list[object] = [
        row.id,
        "lost" if is_lost(row) else row.status,
        row.hostname,
        row.pid,
        f"{row.processes}+{row.async_slots} async" if row.async_slots else row.processes,
        "all" if row.queues is None else ", ".join(row.queues),
        row.held_tasks,
        ago(row.started_at, now),
    ]
    if show_heartbeat:
        cells += [row.last_heartbeat.strftime("%H:%M:%S"), span(row.heartbeat_age), span(row.heartbeat_interval)]
        cells += [] if row.has_session is None else ["held" if row.has_session else "none"]
    return [*cells, f"{ago(row.ended_at, now)}: {row.end_reason}" if row.ended_at else None]


def is_lost(row: WorkerRow) -> bool:
    return row.status is WorkerStatus.ALIVE and not row.is_alive
