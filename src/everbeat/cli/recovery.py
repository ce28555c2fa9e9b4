"""`everbeat queue recover`, `recovery-status`, `recovery-report`: recovery by hand, and what was recovered."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

from everbeat.cli import given, out, which
from everbeat.cli.ends import FAILED
from everbeat.cli.grammar import Option
from everbeat.cli.orders import DryRun
from everbeat.cli.person import actor
from everbeat.config import RecoveryConfig
from everbeat.model.order import Order
from everbeat.model.report import RecoveryReport
from everbeat.report.text import Column, clean, fields, span, stamp
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter

REAPER = "reaper"
MANY = 10_000
SHOWN_SETTINGS = (
    "action", "max_recovery_attempts", "auto_requeue_stale_claimed", "claimed_stale_threshold_ms",
    "auto_fail_stale_running", "running_stale_threshold_ms", "check_interval_ms", "integrity_check_on_startup",
)  # fmt: skip


# -- recover ----------------------------------------------------------------------------------------------------------


class Action(StrEnum):
    RETRY = "retry"
    FAIL = "fail"
    PENDING = "pending"


def recover(
    dry_run: DryRun = False,
    yes: Annotated[bool, Option("--yes", hidden=True, help="As with other orders; it asks nothing.")] = False,
    action: Annotated[
        Action | None,
        Option(help="For every orphan, in place of its own `on_crash`, unless that is fail. Limits stay."),
    ] = None,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Recover now what dead workers left, and print the report.

    All that a starting worker does first: integrity check, repair, log, dead workers, orphans, torn workflows. Live
    workers are not disturbed. Needed only if no worker runs: those that run do it by themselves. Exit 1 if a task
    could not be recovered or the store is damaged.
    """
    from everbeat.run.manual import ByHand  # lazily: most commands need nothing of what runs a store

    config = which.config_for(db, app)
    with which.sound(config) as store, out.stages() as show:
        report = ByHand(store, config.recovery).recover(
            dry_run=dry_run, action=None if action is None else action.value, actor=actor(),
            on_progress=lambda progress: show(progress.stage, progress.done, progress.total),
        )  # fmt: skip
    if as_json:
        out.data(json.loads(report.to_json()))
    else:
        _print(report)
    if report.failed_recoveries and not dry_run:
        raise SystemExit(FAILED)


# -- status -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    worker_id: str
    last_heartbeat: datetime
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStatus:
    store: str
    enabled: bool
    """False: what is stale is left and listed (`auto_requeue_stale_claimed`, `auto_fail_stale_running`)."""
    reaper: str | None
    """The worker that judges by thresholds at present. None: no worker does."""
    healthy_for: timedelta
    """For how long the store has been written without a gap; a threshold counts only if it is shorter."""
    lost_workers: list[LostWorker]
    """Counted as alive, but their process is gone or silent: any worker that runs will recover their tasks."""
    orphaned_tasks: int
    """Their owner is dead or stopped, and nobody has decided about them yet."""
    quarantined: int
    degraded: str | None
    """Why the store works in degraded mode: single tasks could not be recovered."""
    last_recovery: dict[str, Any] | None
    settings: dict[str, Any]


def recovery_status(db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Show what waits to be recovered, and who does it.

    And how the last recovery ended. The settings are those of --app, else of the environment and the configuration file
    here; a worker uses its own.
    """
    config = which.config_for(db, app)
    with which.existing(config) as store:
        status = _status(store, config.recovery)
    if as_json:
        out.data(status)
    else:
        _show(status)


def _status(store: Store, recovery: RecoveryConfig) -> RecoveryStatus:
    from everbeat.run.manual import ByHand  # lazily: most commands need nothing of what runs a store

    last = next(iter(store.reports(limit=1)), None)
    lost = ByHand(store, recovery).detect_stale_workers()
    reaper = store.role_holder(REAPER)
    return RecoveryStatus(
        store=store.location,
        enabled=recovery.auto_requeue_stale_claimed or recovery.auto_fail_stale_running,
        reaper=None if reaper in [worker.worker_id for worker in lost] else reaper,
        healthy_for=timedelta(microseconds=store.healthy_for_us()),
        lost_workers=[
            LostWorker(worker_id=worker.worker_id, last_heartbeat=worker.last_heartbeat, tasks=len(worker.task_ids))
            for worker in lost
        ],
        orphaned_tasks=len(store.orphans(limit=MANY)),
        quarantined=store.count_for(Order.DISCARD, TaskFilter()),
        degraded=store.degraded(),
        last_recovery=None if last is None else _summary(last),
        settings={name: getattr(recovery, name) for name in SHOWN_SETTINGS},
    )


def _summary(report: RecoveryReport) -> dict[str, Any]:
    return {
        "started_at": report.started_at,
        "completed_at": report.completed_at,
        "duration": report.duration,
        "integrity_check_passed": report.integrity_check_passed,
        "wal_frames_checkpointed": report.wal_frames_checkpointed,
        "orphaned_tasks_found": report.orphaned_tasks_found,
        "successful_recoveries": report.successful_recoveries,
        "failed_recoveries": report.failed_recoveries,
        "dead_workers": len(report.dead_workers),
    }


def _show(status: RecoveryStatus) -> None:
    last = status.last_recovery
    out.say(
        fields(
            {
                "store": status.store,
                "recovery": "on" if status.enabled else "off: what is stale is left and listed",
                "reaper": status.reaper or "none: no worker judges by thresholds now",
                "store healthy for": span(status.healthy_for),
                "orphaned tasks": status.orphaned_tasks,
                "quarantined": status.quarantined,
                "degraded": status.degraded or "no",
                "last recovery": "none yet" if last is None else (
                    f"{stamp(last['completed_at'])}: {last['successful_recoveries']} of "
                    f"{last['orphaned_tasks_found']} orphaned tasks recovered, {last['dead_workers']} dead workers"
                ),
                **status.settings,
            }
        )
    )  # fmt: skip
    if status.lost_workers:
        out.say("\nlost workers: process gone or silent; any worker that runs or starts will recover their tasks")
        out.rows(
            [Column("ID"), Column("LAST HEARTBEAT"), Column("TASKS", right=True)],
            [[lost.worker_id, stamp(lost.last_heartbeat), lost.tasks] for lost in status.lost_workers],
            empty="",
        )


# -- report -----------------------------------------------------------------------------------------------------------


def recovery_report(
    last: Annotated[int | None, Option("--last", min=1, max=MANY, help="The newest so many.")] = None,
    since: Annotated[
        given.Moment | None,
        Option(parser=given.moment, metavar="TIME", help="Those later than: 10m, 2h, or an ISO time."),
    ] = None,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Print the report of the last recovery.

    Or of several, newest first. With --json the newest report is the object that is printed ({} if there is none); with
    --last or --since it has the others in `earlier`.
    """
    several = last is not None or since is not None
    with which.existing_store(db, app) as store:
        begins = given.at(store, since)
        found = store.reports(limit=last or (MANY if begins else 1))
    reports = [report for report in found if begins is None or report.completed_at >= begins]
    if as_json:
        said = [json.loads(report.to_json()) for report in reports]
        earlier = {"earlier": said[1:]} if several else {}
        out.data(said[0] | earlier if said else {})
    elif not reports:
        out.say("No recovery was needed." if since is None else "No recovery was needed since then.")
    for report in () if as_json else reports:
        _print(report)


def _print(report: RecoveryReport) -> None:
    out.say("\n".join(line and clean(line) for line in report.to_report().splitlines()) + "\n")
