"""One task in one statement, which is its own transaction: a single round trip, and the server commits those of several
clients together.

Not for a task with an exclusive key, whose turn has to be found, and not one that meets what is stored already: those
go the long way.
"""

from everbeat.crashpoint import crash_point
from everbeat.model.task import NewTask
from everbeat.store.postgres.connection import NOW, PostgresDatabase
from everbeat.store.verbs.sending import OF_KIND

RUN_AT = "coalesce(%(run_at)s::bigint, c.now + %(delay_us)s::bigint)"
SEND = f"""
INSERT INTO everbeat_tasks (id, args, {", ".join(OF_KIND)}, created_at, run_at, due_at)
SELECT %(id)s, %(args)s, %(name)s, %(queue)s, %(priority)s, %(max_attempts)s, %(policy)s, %(unique_key)s,
       %(good_until)s::bigint, NULL, c.now, {RUN_AT}, CASE WHEN {RUN_AT} > c.now THEN {RUN_AT} END
  FROM (SELECT {NOW} AS now) AS c
ON CONFLICT DO NOTHING"""


def try_send(database: PostgresDatabase, task: NewTask) -> bool:
    """False: nothing was stored."""
    kind = task.kind
    values = kind._asdict() | {"id": task.id, "args": task.args, "delay_us": kind.delay_us or 0}
    with database.session() as connection:
        crash_point("enqueue.before_commit")
        added = database.alone(connection, SEND, values)
        crash_point("enqueue.after_commit")
    return added == 1
