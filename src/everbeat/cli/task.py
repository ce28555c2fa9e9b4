"""`everbeat task`: look at tasks, send one, and give orders about them."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from everbeat.cli import application, filters, given, orders, out, which
from everbeat.cli.ends import Refused
from everbeat.cli.grammar import Argument, Group, Misused, Option
from everbeat.cli.person import actor
from everbeat.errors import TaskNotFound
from everbeat.ids import new_id
from everbeat.model.order import Order
from everbeat.model.state import Change, TaskStatus, sources
from everbeat.model.task import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    LateOutcome,
    NewTask,
    TaskError,
    TaskInfo,
    TaskKind,
    attempt_of,
)
from everbeat.options import SendOptions
from everbeat.report.text import Column, ago, clean, fields, plain, stamp, waiting_for
from everbeat.store.interface import Store

app = Group("Look at tasks, send them, give orders about them.")

MOST_AT_ONCE = 100_000

COLUMNS = [Column("ID"), Column("STATUS"), Column("NAME", wraps=True), Column("QUEUE", wraps=True), Column("ATTEMPT"),
           Column("CREATED"), Column("WORKER", wraps=True), Column("NOTE", wraps=True)]  # fmt: skip


# -- looking ----------------------------------------------------------------------------------------------------------


@app.command("list")
def list_(
    status: filters.Statuses = None,
    name: filters.Names = None,
    queue: filters.Queues = None,
    error_code: filters.Codes = None,
    since: filters.Since = None,
    older_than: filters.OlderThan = None,
    limit: Annotated[int, Option(min=1, max=MOST_AT_ONCE, help="At most so many, newest first.")] = 50,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """List tasks, newest first."""
    with which.existing_store(db, app) as store:
        wanted = filters.task_filter(store, status, name, queue, error_code, since, older_than, limit=limit)
        found = store.tasks(wanted)
        if as_json:
            out.data(full(store, found))
            return
        now = store.now()
    out.rows(COLUMNS, [_cells(task, now) for task in found], empty="No tasks.")
    if len(found) == limit:
        out.complain(f"The newest {limit} are shown; --limit shows more.")


@app.command()
def show(
    task_id: Annotated[str, Argument(metavar="ID")],
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Show all that is known of a task.

    Also its attempts, its history, and outcomes that came too late.
    """
    with which.existing_store(db, app) as store:
        task = _the(store, task_id)
        late = store.late_outcomes(task_id)
        error = _shown_error(store, task)
    if as_json:
        raised = {"exception_type": error and error.exception_type, "traceback": error and error.traceback}
        out.data(plain(task) | raised | {"late_outcomes": plain(late)})
        return
    out.say(fields(_facts(task)))
    if error is not None and error.traceback:
        out.say("\ntraceback\n" + "\n".join(f"  {line and clean(line)}" for line in error.traceback.splitlines()))
    if task.attempts:
        out.say("\nattempts without a result")
        _show_attempts(task)
    if task.history:
        out.say("\nhistory")
        _show_history(task)
    if late:
        out.say("\noutcomes that came too late and were refused (everbeat task accept ID takes a result)")
        _show_late(late)


@app.command()
def history(
    task_id: Annotated[str, Argument(metavar="ID")],
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Show who changed a task, when and why. A run without trouble leaves no entry."""
    with which.existing_store(db, app) as store:
        task = _the(store, task_id)
    if as_json:
        out.data({"id": task.id, "status": task.status, "history": task.history, "attempts": task.attempts})
    else:
        _show_history(task)


def _shown_error(store: Store, task: TaskInfo) -> TaskError | None:
    """With its traceback, if it may be shown: that of a sensitive task has another message in what people see."""
    end = store.finished(task.id)
    error = None if end is None else end.error
    return error if error is not None and error.message == task.error_message else None


def _the(store: Store, task_id: str) -> TaskInfo:
    task = store.get(task_id)
    if task is None:
        raise TaskNotFound(task_id, where=store.location)
    return task


def full(store: Store, found: Sequence[TaskInfo]) -> list[TaskInfo]:
    """The same tasks with their attempts and history, which a list does not read."""
    return [task for task in (store.get(one.id) for one in found) if task is not None]


def _cells(task: TaskInfo, now: datetime) -> list[object]:
    note = "; ".join(filter(None, [waiting_for(task.waiting_for), task.error_code])) or None
    return [task.id, task.status, task.name, task.queue, attempt_of(task.attempt, task.max_attempts),
            ago(task.created_at, now), task.worker_id, note]  # fmt: skip


def _attempt(task: TaskInfo) -> str:
    if task.attempt <= task.max_attempts:
        return f"{task.attempt} of {task.max_attempts}"
    return f"{task.attempt} (beyond {task.max_attempts}: unbilled runs, and crashes under on_crash, do not count)"


def _facts(task: TaskInfo) -> dict[str, object]:
    moments = {"created": task.created_at, "run at": task.run_at, "started": task.started_at,
               "finished": task.finished_at}  # fmt: skip
    said: dict[str, object] = {
        "id": task.id,
        "name": task.name,
        "status": f"{task.status} (quarantined)" if task.quarantined else task.status,
        "waiting for": waiting_for(task.waiting_for),
        "queue": task.queue,
        "priority": task.priority,
        "attempt": _attempt(task),
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
        empty="Nothing but its own runs has changed this task.",
    )  # fmt: skip


def _show_late(late: Sequence[LateOutcome]) -> None:
    out.rows(
        [Column("AT"), Column("ATTEMPT", right=True), Column("FENCE", right=True), Column("WORKER", wraps=True),
         Column("FOUND"), Column("OUTCOME", wraps=True)],
        [[stamp(o.at), o.attempt, o.fence, o.worker_id, f"{o.found_status} (fence {o.found_fence})",
          "a result" if o.has_result else f"{o.error_code or 'erased'}: {o.error_message or ''}"] for o in late],
        empty="",
    )  # fmt: skip


# -- sending ----------------------------------------------------------------------------------------------------------


@app.command()
def enqueue(
    name: Annotated[str, Argument(metavar="NAME", help="Name of the task, such as shop.tasks.send_invoice.")],
    args: Annotated[
        str, Option("--args", metavar="JSON", help='Arguments by name: {"order": 7}. A list needs --app.')
    ] = "{}",
    queue: Annotated[str | None, Option(help="Default: the task's own with --app, else `default`.")] = None,
    priority: Annotated[int | None, Option(min=1, max=100, help="1 is first, 100 (default) last.")] = None,
    delay: Annotated[float | None, Option(min=0, metavar="SECONDS", help="Not before so many seconds.")] = None,
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
        raise Misused(str(error)) from error
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
        raise Misused(
            'arguments are stored by name, and only the application knows the names: use {"name": value}, or --app'
        )
    kind = TaskKind(
        name=name,
        queue=options.queue or DEFAULT_QUEUE,
        priority=options.priority or DEFAULT_PRIORITY,
        delay_us=options.delay_us,
    )
    args = json.dumps(call or {}, separators=(",", ":"), ensure_ascii=False).encode()
    task = NewTask(new_id(), args, kind)
    with which.existing_store(db, None) as store:
        store.enqueue([task])
    return {"id": task.id, "name": name, "queue": kind.queue}


# -- orders -----------------------------------------------------------------------------------------------------------

for order in (Order.RETRY, Order.CANCEL, Order.PURGE, Order.REQUEUE, Order.FAIL, Order.ERASE):
    orders.add(app, order)


@app.command()
def accept(
    task_id: Annotated[str, Argument(metavar="ID")],
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Take a result that came too late.

    The task is COMPLETED with it and not run again. `task show ID` lists what came too late; of several results the
    newest is taken.
    """
    with which.existing_store(db, app) as store:
        if not store.accept(task_id, actor=actor()):
            raise Refused(_why_not_accepted(store, task_id))
    out.data({"id": task_id, "status": TaskStatus.COMPLETED}) if as_json else out.say(f"task {task_id} is COMPLETED")


def _why_not_accepted(store: Store, task_id: str) -> str:
    task = store.get(task_id, full=False)
    if task is None:
        return str(TaskNotFound(task_id, where=store.location))
    if not any(late.has_result for late in store.late_outcomes(task_id)):
        return f"task {task_id} has no result that came too late (everbeat task show {task_id})"
    if task.status in sources(Change.ACCEPT) and (over := store.over_around(task_id)):
        return f"the late result of task {task_id} can not be accepted: {orders.over_for_good(over)}"
    fit = ", ".join(sources(Change.ACCEPT))
    return f"task {task_id} is {task.status}; a late result can be accepted for {fit} only"
