"""Which tasks a command means: the options `--status --name --queue --error-code --since --older-than`, once."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from everbeat.cli import given
from everbeat.cli.grammar import Argument, Option
from everbeat.model.state import TaskStatus
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter

IDS_AT_ONCE = 500

Ids = Annotated[list[str] | None, Argument(metavar="ID", help="These tasks; or filters instead.")]
Statuses = Annotated[
    list[TaskStatus] | None,
    Option("--status", parser=given.status, metavar="STATUS", help="Only these; may be repeated."),
]
Names = Annotated[list[str] | None, Option("--name", help="Only tasks with this name; may be repeated.")]
Queues = Annotated[list[str] | None, Option("--queue", help="Only tasks of this queue; may be repeated.")]
Codes = Annotated[
    list[str] | None,
    Option("--error-code", help="Only tasks with this code, such as WORKER_CRASHED; may be repeated."),
]
Since = Annotated[
    given.Moment | None,
    Option("--since", parser=given.moment, metavar="TIME", help="Created later than: 10m, 2h, or an ISO time."),
]
OlderThan = Annotated[
    given.Moment | None,
    Option(
        "--older-than", parser=given.moment, metavar="TIME", help="Ended (else created) before: 30d, or an ISO time."
    ),
]


def task_filter(
    store: Store,
    status: Sequence[TaskStatus] | None,
    name: Sequence[str] | None,
    queue: Sequence[str] | None,
    error_code: Sequence[str] | None,
    since: given.Moment | None,
    older_than: given.Moment | None,
    *,
    limit: int = 50,
) -> TaskFilter:
    return TaskFilter(
        statuses=tuple(status or ()),
        names=tuple(name or ()),
        queues=tuple(queue or ()),
        error_codes=tuple(error_code or ()),
        since=given.at(store, since),
        older_than=given.at(store, older_than),
        limit=limit,
    )


def by_ids(task_ids: Iterable[str]) -> Iterator[TaskFilter]:
    """Each id once, so many at a time that a statement can name them."""
    ids = list(dict.fromkeys(task_ids))
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield TaskFilter(ids=ids[start : start + IDS_AT_ONCE])
