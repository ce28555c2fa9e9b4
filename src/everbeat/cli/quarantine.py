"""`everbeat quarantine`: tasks that were set aside because their own process died too often."""

from typing import Annotated

from everbeat.cli import orders, out, which
from everbeat.cli.grammar import Group, Option
from everbeat.cli.task import full
from everbeat.model.order import Order
from everbeat.report.text import Column, ago
from everbeat.store.messages import TaskFilter

app = Group("Tasks that kept killing their process.")

COLUMNS = [Column("ID"), Column("NAME", wraps=True), Column("QUEUE", wraps=True), Column("CRASHES", right=True),
           Column("WHEN"), Column("WHY", wraps=True)]  # fmt: skip


@app.command("list")
def list_(
    limit: Annotated[int, Option(min=1, help="At most so many, newest first.")] = 50,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """List tasks that FAILED because their own process died too often.

    `quarantine release ID` lets one run again, `quarantine discard ID` leaves it FAILED.
    """
    with which.existing_store(db, app) as store:
        found = store.tasks(TaskFilter(quarantined=True, limit=limit))
        if as_json:
            out.data(full(store, found))
            return
        now = store.now()
        out.rows(
            COLUMNS,
            [[t.id, t.name, t.queue, t.crash_count, ago(t.finished_at, now), t.error_message] for t in found],
            empty="The quarantine is empty.",
        )


for order in (Order.RELEASE, Order.DISCARD):
    orders.add(app, order)
