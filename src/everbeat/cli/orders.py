"""Orders about many tasks: the same options, the same question before, the same account after, for every verb.

Ids or filters say which. Filters show a count and ask; without a terminal to ask on, `--yes` is needed (exit 2). Ids
that do not fit are named, the others are done, and the command ends with 1.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from everbeat.cli import filters, out, which
from everbeat.cli.ends import FAILED
from everbeat.cli.grammar import Group, Misused, Option
from everbeat.cli.person import actor
from everbeat.errors import StoreUnavailable, TaskNotFound
from everbeat.model.flow import WorkflowInfo, WorkflowStatus
from everbeat.model.order import Order
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import TaskInfo
from everbeat.report.text import counted
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter

TAKE_FROM_OWNER = (Order.REQUEUE, Order.FAIL)

DryRun = Annotated[bool, Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, Option("--yes", help="Do not ask.")]
Reason = Annotated[str | None, Option("--reason", help="For the history.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How an order is spoken about."""

    key: str
    """Of the ids in `--json`."""
    would: str
    done: str
    ask: str
    cannot: str
    help: str


def _words(
    key: str, *, ask: str, help: str, would: str | None = None, done: str | None = None, cannot: str | None = None
) -> Words:
    """The past participle serves for all that is not given."""
    return Words(
        key=key, ask=ask, help=help, would=would or f"would be {key}", done=done or key, cannot=cannot or f"be {key}"
    )


WORDS = {
    Order.CANCEL: _words(
        "cancelled",
        ask="Cancel {tasks}?",
        help="""Cancel tasks that have not ended: by ids, or by filters.

    What has not begun is cancelled at once. A RUNNING task is told to stop by its worker, and killed if it does not; it
    is CANCELLED when its process has ended it. If it ends by itself before that, its outcome counts.""",
    ),
    Order.RETRY: _words(
        "retried",
        would="would run again",
        done="will run again",
        ask="Run {tasks} again?",
        help="""Run ended tasks again, with fresh counters.

    Those that FAILED, were CANCELLED or EXPIRED: by ids, or by filters. Filters leave the quarantine alone (`quarantine
    release`). A COMPLETED task is never run again.""",
    ),
    Order.RELEASE: _words(
        "released",
        would="would be released and run again",
        done="released, and will run again",
        ask="Release {tasks} to run again?",
        cannot="be released from the quarantine",
        help="""Run tasks of the quarantine again.

    Each alone in a process, with fresh counters: by ids, or by filters.""",
    ),
    Order.DISCARD: _words(
        "discarded",
        would="would leave the quarantine and stay FAILED",
        done="taken out of the quarantine; FAILED for good",
        ask="Take {tasks} out of the quarantine without another run?",
        help="""Take tasks out of the quarantine, without another run.

    They stay FAILED, and are not listed as quarantined any more: by ids, or by filters.""",
    ),
    Order.REQUEUE: _words(
        "requeued",
        would="would be taken from their owners and queued again",
        done="queued again",
        ask="Take {tasks} from their owners and queue them again?",
        help="""Take tasks from their owner and queue them again.

    CLAIMED and RUNNING ones: by ids, or by filters. Its worker tells the run to stop, and kills it if it does not;
    until then, the task may run twice at once. What the old run brings is refused and kept (`task show`). The tasks of
    a worker that died need none of this: they are recovered.""",
    ),
    Order.FAIL: _words(
        "failed",
        ask="Fail {tasks}?",
        help="""Fail tasks that have not ended.

    With code FAILED_BY_HAND: by ids, or by filters. A run is told to stop by its worker, and killed if it does not;
    what it still brings is refused and kept (`task show`, `task accept`).""",
    ),
    Order.ERASE: _words(
        "erased",
        ask="Erase arguments, results and errors of {tasks} for good?",
        help="""Blank what ended tasks were given, returned and raised.

    Arguments, result and error texts, also of attempts and late outcomes: by ids, or by filters. The rows and their
    history stay. The bytes are overwritten in the file; backups made before still have them. An erased task can not run
    again.""",
    ),
    Order.PURGE: _words(
        "purged",
        would="would be removed",
        done="removed",
        ask="Remove {tasks} and their records for good?",
        cannot="be removed",
        help="""Remove ended tasks with all their records.

    Attempts, history and results go too: by ids, or by filters.""",
    ),
}


RUNS_ON = {
    Order.CANCEL: "was told to stop; it is CANCELLED when that is done",
    Order.REQUEUE: "is told to stop; if it has a result, that is refused",
    Order.FAIL: "is told to stop; if it has a result, that is refused",
}
"""What is said of a run that an order finds."""


def add(group: Group, order: Order) -> None:
    """The order as a command of the group."""
    takes = order in TAKE_FROM_OWNER

    def command(
        task_ids: filters.Ids = None,
        status: filters.Statuses = None,
        name: filters.Names = None,
        queue: filters.Queues = None,
        error_code: filters.Codes = None,
        since: filters.Since = None,
        older_than: filters.OlderThan = None,
        reason: Reason = None,
        force: Annotated[
            bool,
            Option(
                "--force", hidden=not takes, help="Also while it runs under an exclusive key: two may overlap then."
            ),
        ] = False,
        dry_run: DryRun = False,
        yes: Yes = False,
        db: which.Db = None,
        app: which.App = None,
        as_json: which.AsJson = False,
    ) -> None:
        asked = (status, name, queue, error_code, since, older_than)
        if bool(task_ids) == any(one is not None for one in asked):
            options = "--status --name --queue --error-code --since --older-than"
            raise Misused(f"give either ids or filters ({options})")
        if force and not takes:
            raise Misused(f"--force has no meaning for {order}")
        if unfit := set(status or ()).difference(order.statuses):
            raise Misused(f"{', '.join(sorted(unfit))} can not {_limits(order)}")
        with which.existing_store(db, app) as store:
            if task_ids:
                _by_ids(store, order, task_ids, reason=reason, force=force, dry_run=dry_run, as_json=as_json)
            else:
                wanted = replace(filters.task_filter(store, *asked), force=force)
                _by_filter(store, order, wanted, reason=reason, dry_run=dry_run, yes=yes, as_json=as_json)

    command.__doc__ = WORDS[order].help
    group.command(order.value)(command)


def _by_ids(
    store: Store, order: Order, task_ids: Sequence[str], *, reason: str | None, force: bool, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    runs = _runs_of(store, task_ids) if order in RUNS_ON else {}
    done: list[str] = []
    with _told_if_cut_short(order, done, dry_run=dry_run):
        for wanted in filters.by_ids(task_ids):
            for batch in store.carry_out(
                order, replace(wanted, force=force), actor=actor(), reason=reason, dry_run=dry_run
            ):
                done += batch
    missed = [task_id for task_id in dict.fromkeys(task_ids) if task_id not in set(done)]
    problems = [_problem(store, order, task_id) for task_id in missed]
    for problem in problems:
        out.complain(problem)
    _tell(order, done, problems, dry_run=dry_run, as_json=as_json)
    for task_id in done:
        if task_id in runs and not dry_run:
            out.complain(f"task {task_id}: its run on {runs[task_id]} {RUNS_ON[order]}")
    if problems:
        raise SystemExit(FAILED)


def _by_filter(
    store: Store, order: Order, wanted: TaskFilter, *, reason: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    if order is Order.RETRY:
        wanted = replace(wanted, quarantined=False)  # what kept killing its process is released on purpose only
    count = store.count_for(order, wanted)
    if count and not (dry_run or yes):
        _ask(order, count)
    done: list[str] = []
    bar = out.progress(f"{order} {counted(count, 'task')}", count)
    with _told_if_cut_short(order, done, dry_run=dry_run), bar as advance:
        for batch in store.carry_out(order, wanted, actor=actor(), reason=reason, dry_run=dry_run):
            done += batch
            advance(len(batch))
    _tell(order, done, [], dry_run=dry_run, as_json=as_json)


@contextmanager
def _told_if_cut_short(order: Order, done: Sequence[str], *, dry_run: bool) -> Iterator[None]:
    """Each batch is a commit of its own: what was done before an outage or Ctrl-C stays done."""
    try:
        yield
    except (StoreUnavailable, KeyboardInterrupt) as error:
        if done and not dry_run:
            is_known = isinstance(error, StoreUnavailable) and not error.maybe_stored
            rest = "the others are as they were" if is_known else "perhaps those of the next batch, and no others"
            out.complain(f"cut short: {counted(len(done), 'task')} {WORDS[order].done}, {rest}")
        raise


def _tell(order: Order, done: Sequence[str], problems: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    words = WORDS[order]
    if as_json:
        out.data({"dry_run": dry_run, "count": len(done), words.key: done, "refused": problems})
    else:
        out.say(f"{counted(len(done), 'task')} {words.would if dry_run else words.done}")


def _ask(order: Order, count: int) -> None:
    tasks = counted(count, "task")
    out.agree(f"{tasks} {WORDS[order].would}", WORDS[order].ask.format(tasks=tasks))


def _problem(store: Store, order: Order, task_id: str) -> str:
    task = store.get(task_id)
    if task is None:
        return str(TaskNotFound(task_id, where=store.location))
    if task.status not in order.statuses:
        return f"task {task_id} is {task.status}; only {_fit(order)} can {WORDS[order].cannot}"
    if order.is_for_quarantine and not task.quarantined:
        return f"task {task_id} is not in quarantine"
    if any(entry.change == Order.ERASE for entry in task.history):
        return f"task {task_id} was erased, its arguments are gone; send it anew"
    if order in TAKE_FROM_OWNER and task.status is TaskStatus.RUNNING:
        return (
            f"task {task_id} runs under an exclusive key on {task.worker_id}, and would overlap with the next one. If "
            f"its worker is gone it is recovered when its lease has run out; --force does not wait"
        )
    if order.change is Change.REVIVE and (over := store.over_around(task_id)):
        return f"task {task_id} can not run again: {over_for_good(over)}"
    if order.change is Change.REVIVE:
        return f"task {task_id} can not run again now: another task with its unique key has not ended"
    return f"task {task_id} was changed by somebody else meanwhile; look at it and repeat"


def over_for_good(workflow: WorkflowInfo) -> str:
    """Why a task in it can not live again."""
    if workflow.status is WorkflowStatus.CANCELLED:
        return f"workflow {workflow.id}, of which it is a part, is CANCELLED"
    said = f"workflow {workflow.id}, of which it is a part, is COMPLETED without it"
    return f"{said}, and {workflow.parent_id} has gone on with its result"


def _runs_of(store: Store, task_ids: Sequence[str]) -> dict[str, str]:
    """Those that run at present, and where."""
    return {task.id: str(task.worker_id) for task in _found(store, task_ids) if task.status is TaskStatus.RUNNING}


def _found(store: Store, task_ids: Sequence[str]) -> Iterator[TaskInfo]:
    for wanted in filters.by_ids(task_ids):
        yield from store.tasks(replace(wanted, limit=filters.IDS_AT_ONCE))


def _limits(order: Order) -> str:
    return f"{WORDS[order].cannot}, only {_fit(order)}"


def _fit(order: Order) -> str:
    return ", ".join(order.statuses)
