"""`everbeat task`: look at tasks, send one, let finished ones run again."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from everbeat.cli import application, given, out, which
from everbeat.cli.ends import FAILED, USAGE, Refused
from everbeat.errors import TaskNotFound
from everbeat.ids import new_id
from everbeat.model.event import OUTCOME_ADOPTED, OUTCOME_REFUSED
from everbeat.model.state import Change, TaskStatus, sources
from everbeat.model.task import DEFAULT_PRIORITY, DEFAULT_QUEUE, NewTask, TaskInfo
from everbeat.report.text import Column, ago, counted, event_line, fields, plain, stamp
from everbeat.store.interface import Store, TaskFilter
from everbeat.task import SendOptions

app = typer.Typer(help="Look at tasks, send them, run them again.", no_args_is_help=True, rich_markup_mode=None)

ACTOR = "user/cli"
REVIVABLE = sources(Change.REVIVE)
MOST_AT_ONCE = 100_000
BATCH = 500
"""Tasks per transaction of a bulk change: live work goes on in between."""

Statuses = Annotated[
    list[TaskStatus] | None, typer.Option("--status", case_sensitive=False, help="Only these; may be repeated.")
]
Names = Annotated[list[str] | None, typer.Option("--name", help="Only tasks with this name; may be repeated.")]
Queues = Annotated[list[str] | None, typer.Option("--queue", help="Only tasks of this queue; may be repeated.")]
Codes = Annotated[
    list[str] | None,
    typer.Option("--error-code", help="Only tasks with this code, such as WORKER_CRASHED; may be repeated."),
]
Since = Annotated[
    datetime | None,
    typer.Option("--since", parser=given.moment, metavar="TIME", help="Created later than: 10m, 2h, or an ISO time."),
]

COLUMNS = [Column("ID"), Column("STATUS"), Column("NAME", wraps=True), Column("QUEUE", wraps=True), Column("ATTEMPT"),
           Column("CREATED"), Column("WORKER", wraps=True), Column("NOTE", wraps=True)]  # fmt: skip


# -- looking ----------------------------------------------------------------------------------------------------------


@app.command("list")
def list_(
    status: Statuses = None,
    name: Names = None,
    queue: Queues = None,
    error_code: Codes = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST_AT_ONCE, help="At most so many, newest first.")] = 50,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """List tasks, newest first."""
    wanted = _filter(status, name, queue, error_code, since, limit)
    with which.existing_store(db, app) as store:
        found = store.tasks(wanted)
        if as_json:
            out.data(full(store, found))
            return
    now = datetime.now(UTC)
    out.rows(COLUMNS, [_cells(task, now) for task in found], empty="No tasks.")
    if len(found) == limit:
        out.complain(f"The newest {limit} are shown; --limit shows more.")


@app.command()
def show(
    task_id: Annotated[str, typer.Argument(metavar="ID")],
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Show all that is known of a task: its attempts, its history, outcomes that came too late."""
    with which.existing_store(db, app) as store:
        task = store.get(task_id)
        if task is None:
            raise TaskNotFound(task_id, where=store.location)
        late = [e for e in store.events(task_id=task_id) if e.name in (OUTCOME_REFUSED, OUTCOME_ADOPTED)]
    if as_json:
        out.data(plain(task) | {"late_outcomes": plain(late)})
        return
    out.say(fields(_facts(task)))
    if task.attempts:
        out.say("\nattempts without a result")
        _show_attempts(task)
    if task.history:
        out.say("\nhistory")
        _show_history(task)
    if late:
        out.say("\noutcomes that came too late")
        out.say("\n".join(map(event_line, late)))


def full(store: Store, found: Sequence[TaskInfo]) -> list[TaskInfo]:
    """The same tasks with their attempts and history, which a list does not read."""
    return [task for task in (store.get(one.id) for one in found) if task is not None]


def _cells(task: TaskInfo, now: datetime) -> list[object]:
    note = task.error_code or task.waiting_for
    return [task.id, task.status, task.name, task.queue, f"{task.attempt}/{task.max_attempts}",
            ago(task.created_at, now), task.worker_id, note]  # fmt: skip


def _facts(task: TaskInfo) -> dict[str, object]:
    moments = {"created": task.created_at, "run at": task.run_at, "started": task.started_at,
               "finished": task.finished_at}  # fmt: skip
    said: dict[str, object] = {
        "id": task.id,
        "name": task.name,
        "status": f"{task.status} (quarantined)" if task.quarantined else task.status,
        "waiting for": task.waiting_for,
        "queue": task.queue,
        "priority": task.priority,
        "attempt": f"{task.attempt} of {task.max_attempts}",
        "crashes": f"{task.crash_count} of its own process, {task.lost_count} with its worker",
        "worker": task.worker_id,
        "fence": task.fence,
        **{name: stamp(moment) for name, moment in moments.items() if moment is not None},
        "error": task.error_code,
        "message": task.error_message,
        "progress": json.dumps(task.progress) if task.progress is not None else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _show_attempts(task: TaskInfo) -> None:
    out.rows(
        [Column("ATTEMPT", right=True), Column("OUTCOME"), Column("STARTED"), Column("ENDED"),
         Column("WORKER", wraps=True), Column("PID", right=True), Column("RETRY"), Column("MESSAGE", wraps=True)],
        [[a.attempt, a.outcome, stamp(a.started_at), stamp(a.finished_at), a.worker_id, a.pid,
          "yes" if a.will_retry else "no", a.error_message] for a in task.attempts],
        empty="",
    )  # fmt: skip


def _show_history(task: TaskInfo) -> None:
    out.rows(
        [Column("AT"), Column("ACTOR", wraps=True), Column("CHANGE"), Column("FROM"), Column("TO"),
         Column("REASON", wraps=True)],
        [[stamp(h.at), h.actor, h.change, h.old_status, h.new_status, h.reason] for h in task.history],
        empty="",
    )  # fmt: skip


def _filter(
    status: list[TaskStatus] | None,
    name: list[str] | None,
    queue: list[str] | None,
    error_code: list[str] | None,
    since: datetime | None,
    limit: int,
) -> TaskFilter:
    return TaskFilter(
        statuses=tuple(status or ()),
        names=tuple(name or ()),
        queues=tuple(queue or ()),
        error_codes=tuple(error_code or ()),
        since=since,
        limit=limit,
    )


# -- sending ----------------------------------------------------------------------------------------------------------


@app.command()
def enqueue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the task, such as shop.tasks.send_invoice.")],
    args: Annotated[
        str, typer.Option("--args", metavar="JSON", help='Arguments by name: {"order": 7}. A list needs --app.')
    ] = "{}",
    queue: Annotated[str | None, typer.Option(help="Default: the task's own with --app, else `default`.")] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=100, help="1 is first, 100 (default) last.")] = None,
    delay: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Not before so many seconds.")] = None,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Send one task and print its id.

    With --app the application checks the arguments and its task's queue, priority and retry policy apply. Without it
    the task is stored by name alone: one attempt, and arguments are checked when it runs.
    """
    given.name(name, "task name")
    call = given.arguments(args)
    try:
        options = SendOptions(queue=queue, priority=priority, delay=delay)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if app:
        asked = {"queue": queue, "priority": priority, "delay": delay}
        sent = application.enqueue(app, db=_existing_url(db), name=name, args=call, options=asked)
    else:
        sent = _store_by_name(name, call, options, db)
    out.data(sent) if as_json else out.say(sent["id"])


def _existing_url(db: str | None) -> str | None:
    """The URL, if there is a store: the application would make one of a mistyped path."""
    if db is None:
        return None
    config = which.config_for(db, None)
    with which.existing(config):
        return config.broker.url


def _store_by_name(name: str, call: list[Any] | dict[str, Any], options: SendOptions, db: str | None) -> dict[str, Any]:
    if isinstance(call, list) and call:
        raise typer.BadParameter(
            'arguments are stored by name, and only the application knows the names: use {"name": value}, or --app'
        )
    task = NewTask(
        id=new_id(),
        name=name,
        queue=options.queue or DEFAULT_QUEUE,
        priority=options.priority or DEFAULT_PRIORITY,
        args=json.dumps(call or {}, separators=(",", ":"), ensure_ascii=False).encode(),
        delay_us=options.delay_us,
    )
    with which.existing_store(db, None) as store:
        store.enqueue([task])
    return {"id": task.id, "name": task.name, "queue": task.queue}


# -- another run ------------------------------------------------------------------------------------------------------


@app.command()
def retry(
    task_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None,
    status: Statuses = None,
    name: Names = None,
    queue: Queues = None,
    error_code: Codes = None,
    since: Since = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Let tasks that FAILED, were CANCELLED or EXPIRED run again, with fresh counters: by ids, or by filters."""
    filters = (status, name, queue, error_code, since)
    if bool(task_ids) == any(filters):
        raise typer.BadParameter("give either ids or filters (--status --name --queue --error-code --since)")
    if unfit := set(status or ()).difference(REVIVABLE):
        raise typer.BadParameter(f"{', '.join(sorted(unfit))} can not be retried, only {', '.join(REVIVABLE)}")
    with which.existing_store(db, app) as store:
        if task_ids:
            fit, problems = _judged(store, task_ids)
        else:
            fit, problems = _matching(store, _filter(status or list(REVIVABLE), *filters[1:], MOST_AT_ONCE)), []
            if not dry_run:
                _ask(len(fit), yes=yes)
        revived = fit if dry_run else _revived(store, fit)
    for problem in problems:
        out.complain(problem)
    if as_json:
        out.data({"dry_run": dry_run, "retried": revived, "refused": problems})
    else:
        out.say(f"{counted(len(revived), 'task')} {'would run' if dry_run else 'will run'} again")
    if problems:
        raise typer.Exit(FAILED)


def _judged(store: Store, task_ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """The ids that can be retried, and what is wrong with the others."""
    fit: list[str] = []
    problems: list[str] = []
    for task_id in dict.fromkeys(task_ids):
        task = store.get(task_id, full=False)
        if task is None:
            problems.append(str(TaskNotFound(task_id, where=store.location)))
        elif task.status not in REVIVABLE:
            problems.append(f"task {task_id} is {task.status}; only {', '.join(REVIVABLE)} can be retried")
        else:
            fit.append(task_id)
    return fit, problems


def _matching(store: Store, wanted: TaskFilter) -> list[str]:
    return [task.id for task in store.tasks(wanted)]


def _ask(count: int, *, yes: bool) -> None:
    if yes or not count:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{counted(count, 'task')} would run again; add --yes to do it, --dry-run to look", code=USAGE)
    if not typer.confirm(f"Run {counted(count, 'task')} again?", err=True):
        raise Refused("nothing was changed")


def _revived(store: Store, task_ids: Sequence[str]) -> list[str]:
    starts = range(0, len(task_ids), BATCH)
    return [done for start in starts for done in store.revive(task_ids[start : start + BATCH], actor=ACTOR)]
