"""`everbeat worker`: start one, list them."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from everbeat import __version__
from everbeat.cli import given, out, which
from everbeat.cli.ends import FAILED, USAGE, Refused
from everbeat.config import AppConfig, RecoveryConfig, broker_from_url, effective
from everbeat.config.catalogue import RECOVERY_ENABLED
from everbeat.model.recovery import Progress, RecoveryReport
from everbeat.model.worker import WorkerHeartbeatStatus, WorkerInfo, WorkerStatus
from everbeat.report.text import Column, ago, banner, recovery_line, span
from everbeat.run.cpus import usable_cpus
from everbeat.store.interface import Store

if TYPE_CHECKING:
    from everbeat.run.life import Life

app = typer.Typer(help="Start and list workers.", no_args_is_help=True, rich_markup_mode=None)


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# -- start ------------------------------------------------------------------------------------------------------------


@app.command()
def start(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP", envvar="EVERBEAT_APP", help="The application; the working directory is importable."
        ),
    ],
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes for sync tasks. Default: the processors it may use."),
    ] = None,
    async_slots: Annotated[
        int | None,
        typer.Option(min=0, max=100_000, help="Async tasks at once. Default: 100 if the application has any."),
    ] = None,
    queues: Annotated[str | None, typer.Option(metavar="A,B", help="Only these queues. Default: every queue.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the worker. Default: the host's name.")] = None,
    imports: Annotated[
        list[str] | None, typer.Option("--import", metavar="MODULE", help="Import this too; may be repeated.")
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="Exit when nothing can start now and nothing runs.")] = False,
    drain_timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long running tasks may go on after SIGTERM.")
    ] = 25.0,
    db: Annotated[str | None, typer.Option("--db", metavar="URL", help="Use this store, not the app's own.")] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics there. PORT alone means 127.0.0.1."),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Of the log on stderr.")] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(case_sensitive=False, help="Of the log on stderr.")] = LogLevel.INFO,
    frame_depth: Annotated[int, typer.Option(min=1, max=1024, hidden=True)] = 64,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C. What dead workers left is recovered first, then it prints `ready`."""
    from everbeat.report import log  # lazily: looking at a store needs nothing of what runs one
    from everbeat.run.httpd import AddressUnusable
    from everbeat.run.options import WorkerOptions
    from everbeat.run.worker import AppUnusable, run_worker

    options = WorkerOptions(
        target=target,
        processes=processes or usable_cpus(),
        async_slots=async_slots,
        queues=given.names(queues, "queue"),
        name=None if name is None else given.name(name, "worker name"),
        imports=tuple(imports or ()),
        database_url=None if db is None else broker_from_url(db, where="--db").url,
        burst=burst,
        drain_timeout=drain_timeout,
        frame_depth=frame_depth,
        log_level=log_level,
        log_format=log_format,
        http=None if http is None else given.address(http),
    )
    log.set_up(level=log_level, style=log_format)
    try:
        with _Bar() as bar:
            code = run_worker(options, announce=bar.then(_announce), on_progress=bar.show)
    except AddressUnusable as error:
        raise Refused(f"--http: {error}") from error
    except AppUnusable as error:
        raise Refused(f"{target}: {error}", code=USAGE if error.kind in ("missing", "config") else FAILED) from error
    raise typer.Exit(code)


class _Bar(ExitStack):
    """How far the recovery is, on a terminal, from its first word to the banner."""

    _stages: Callable[[str, int, int | None], None] | None = None

    def show(self, progress: Progress) -> None:
        if self._stages is None:
            self._stages = self.enter_context(out.stages())
        self._stages(progress.stage, progress.done, progress.total)

    def then(self, announce: Callable[["Life", RecoveryReport | None], None]) -> Callable[..., None]:
        def announced(life: "Life", report: RecoveryReport | None) -> None:
            self.close()
            announce(life, report)

        return announced


def _announce(life: "Life", report: RecoveryReport | None) -> None:
    worker = life.profile
    out.say(
        banner(
            version=__version__,
            worker_id=worker.worker_id,
            pid=worker.host.pid,
            target=worker.options.target,
            task_count=len(worker.names),
            store=life.store.location,
            engine=f"SQLite {sqlite3.sqlite_version}",
            processes=worker.options.processes,
            async_slots=worker.async_slots,
            queues=worker.options.queues,
            recovery=recovery_line(report),
        )
    )
    _tell_settings(worker.config)
    out.say("ready")


def _tell_settings(config: AppConfig) -> None:
    from everbeat.report.log import Reporter

    reporter = Reporter()
    for one in effective(config):
        if one.is_from_outside:
            say = reporter.warn if one.origin == RECOVERY_ENABLED else reporter.say
            say("setting.given", name=one.key, value=one.value, by=one.origin)


# -- list -------------------------------------------------------------------------------------------------------------


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
    ended_at: datetime | None
    end_reason: str | None


@app.command("list")
def list_(
    show_heartbeat: Annotated[
        bool, typer.Option("--show-heartbeat", help="Add the last heartbeat, its age and its interval.")
    ] = False,
    status: Annotated[
        list[WorkerStatus] | None, typer.Option(case_sensitive=False, help="Only these; may be repeated.")
    ] = None,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """List workers: the living, and those that stopped or died."""
    config = which.config_for(db, app)
    with which.existing(config) as store:
        rows = worker_rows(store, config.recovery)
    wanted = [row for row in rows if not status or row.status in status]
    if as_json:
        out.data(wanted)
    else:
        _show(wanted, show_heartbeat=show_heartbeat)


def worker_rows(store: Store, recovery: RecoveryConfig) -> list[WorkerRow]:
    from everbeat.run import manual  # lazily, as above

    workers = {worker.id: worker for worker in store.workers()}
    beats = manual.get_worker_status(store, recovery)
    return [_row(workers[beat.worker_id], beat) for beat in beats if beat.worker_id in workers]


def _row(worker: WorkerInfo, beat: WorkerHeartbeatStatus) -> WorkerRow:
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
        heartbeat_age=beat.age if worker.same_clock else datetime.now(UTC) - worker.last_beat_at,
        heartbeat_interval=timedelta(milliseconds=worker.beat_interval_ms),
        ended_at=worker.ended_at,
        end_reason=worker.end_reason,
    )


def _show(rows: Sequence[WorkerRow], *, show_heartbeat: bool) -> None:
    now = datetime.now(UTC)
    columns = [Column("ID"), Column("STATUS"), Column("HOST", wraps=True), Column("PID", right=True), Column("SLOTS"),
               Column("QUEUES", wraps=True), Column("TASKS", right=True), Column("STARTED")]  # fmt: skip
    if show_heartbeat:
        columns += [Column("LAST HEARTBEAT"), Column("AGE", right=True), Column("EVERY", right=True)]
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
    return [*cells, f"{ago(row.ended_at, now)}: {row.end_reason}" if row.ended_at else None]


def is_lost(row: WorkerRow) -> bool:
    return row.status is WorkerStatus.ALIVE and not row.is_alive
