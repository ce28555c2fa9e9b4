"""`everbeat worker health`: one answer for a probe, by exit code, and the reasons for a person."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from everbeat.cli import out, which
from everbeat.cli.ends import FAILED
from everbeat.cli.grammar import Argument
from everbeat.cli.worker import WorkerRow, is_lost, worker_rows
from everbeat.model.worker import WorkerStatus
from everbeat.report.text import clean, counted, span
from everbeat.store.interface import Store


def health(
    name: Annotated[
        str | None, Argument(metavar="NAME", help="Name or id of a worker. Default: all of them together.")
    ] = None,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Say by the exit code whether workers are well.

    0 if so, 1 if not or if the store is blocked, 3 if there is no store. With NAME: a worker of that name or id is
    alive. Without: at least one is, and none is lost (its process gone or silent, and nobody has noticed yet).
    """
    config = which.config_for(db, app)
    with which.existing(config) as store:
        found = worker_rows(store, config.recovery, store.now())
        rows = [row for row in found if name is None or name in (row.id, row.name)]
        problems = list(_problems(store, rows, name))
        degraded = store.degraded()
    living = [row for row in rows if row.is_alive]
    if as_json:
        out.data({"healthy": not problems, "problems": problems, "degraded": degraded, "workers": living})
    else:
        for row in living:
            out.say(clean(f"{row.id}: alive, last heartbeat {span(row.heartbeat_age)} ago, {_tasks(row)}"))
        if degraded:
            out.say(f"degraded: {clean(degraded)}")
        out.say("\n".join(f"unhealthy: {clean(problem)}" for problem in problems) or "healthy")
    if problems:
        raise SystemExit(FAILED)


def _problems(store: Store, rows: Sequence[WorkerRow], name: str | None) -> Iterator[str]:
    blocker = store.blocker()
    if blocker is not None and blocker.is_stopped:
        yield f"store blocked by {blocker}: nobody can write until it goes on or ends"
    lost = [row for row in rows if is_lost(row)]
    yield from (f"worker {row.id} (pid {row.pid} on {row.hostname}) is lost: gone or silent" for row in lost)
    if any(row.is_alive for row in rows) or lost:
        return
    if name is None:
        yield "no worker is alive"
    elif not rows:
        yield f"no worker {name} has ever been here"
    else:
        newest = rows[-1]
        verb = "stopped" if newest.status is WorkerStatus.STOPPED else "died"
        yield f"worker {newest.id} {verb}: {newest.end_reason}"


def _tasks(row: WorkerRow) -> str:
    return counted(row.held_tasks, "task")
