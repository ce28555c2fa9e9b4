"""Take what is ready in one round trip: what a worker does when it is called and has nothing to tell.

A flush asks, decides and changes, which takes two round trips. Where what is ready is of one kind and nothing is
special about any of it, there is nothing to decide, and the claim itself is one guarded statement behind the lock on
the row of the worker. Both commit themselves. That nothing is ready is known by it, too.

The same holds as in a flush: RUNNING is committed before anybody hears of the claim (P4), by a worker that is alive and
in a store that knows no less than it did (PROTOCOL 2, 8), and in the order of claims. Not done here, but by a flush,
which then finds everything as it was: tasks that were claimed before, or have a time limit, a key, a workflow, a
process of their own; queues with a limit, or paused; tasks that have become due; several kinds of tasks at once.
"""

from psycopg import Error

from everbeat.crashpoint import crash_point
from everbeat.decide.room import Room
from everbeat.model.worker import WorkerStatus
from everbeat.store.messages import Flush, Flushed
from everbeat.store.postgres.arrays import KINDS as ARRAYS
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.dialect import translate
from everbeat.store.postgres.hot import KINDS, KINDS_OF, LOOK, NOW, READY
from everbeat.store.verbs import claiming, queueing

# Of a row that was never claimed, as `verbs/unsound.py` and `verbs/claiming.py` mean it.
IS_PLAIN = """(t.fence IN (0, 1) AND t.attempt = 0 AND t.free_attempts = 0 AND t.crash_count = 0 AND t.lost_count = 0
       AND t.dispatch_count = 0 AND t.solo = 0 AND t.good_until IS NULL AND t.exclusive_key IS NULL
       AND t.workflow_id IS NULL AND t.node IS NULL AND t.refs IS NULL
       AND (t.policy IS NULL OR t.policy !~ '"(timeout|isolated)"'))"""

# everbeat_tasks_ready, then the primary key. A statement of its own, so that it sees what was set while the row of the
# worker was waited for.
TAKE = f"""
WITH kinds (queue, name) AS MATERIALIZED ({{kinds}}),
kind AS MATERIALIZED (
    SELECT max(k.queue) AS queue, max(k.name) AS name FROM kinds k
    HAVING count(*) = 1
       AND EXISTS (SELECT 1 FROM everbeat_workers w
                    WHERE w.id = %(worker_id)s AND w.status = 'alive' AND w.beat_seq >= %(seen_beat)s::bigint)
       AND NOT EXISTS ({translate(queueing.LIMITS)})
       AND coalesce(({translate(claiming.NEXT_DUE)}) > {NOW}, true)),
ready AS MATERIALIZED (
    SELECT t.seq, {IS_PLAIN} AS is_plain
      FROM everbeat_tasks t
     WHERE {READY} AND t.queue = (SELECT queue FROM kind) AND t.name = (SELECT name FROM kind)
     ORDER BY t.priority, t.seq
     LIMIT (SELECT r.most FROM unnest(%(names)s::text[], %(most)s::bigint[]) AS r (name, most)
             WHERE r.name = (SELECT name FROM kind))
       FOR UPDATE SKIP LOCKED),
taken AS (
    UPDATE everbeat_tasks
       SET status = 'RUNNING', fence = fence + 1, worker_id = %(worker_id)s, counted = 0, attempt = attempt + 1,
           started_at = (SELECT {NOW})
     WHERE seq = ANY (ARRAY(SELECT seq FROM ready WHERE (SELECT bool_and(is_plain) FROM ready)))
    RETURNING priority, seq, id, name, queue, fence - 1, attempt - 1, 0, 0, 0, 0, 0, policy, args)
SELECT found.count, taken.* FROM (SELECT count(*) FROM kinds) AS found LEFT JOIN taken ON true"""
TAKE_ANY = TAKE.format(kinds=KINDS.replace("%s", "%(names)s"))
TAKE_OF = TAKE.format(kinds=KINDS_OF.replace("%s", "%(queues)s", 1).replace("%s", "%(names)s"))


def at_once(database: PostgresDatabase, flush: Flush) -> Flushed | None:
    """None: nothing was changed, it takes a whole flush."""
    room = flush.room
    has_news = flush.endings or flush.starts or flush.events or flush.reports
    if room is None or has_news or flush.row_by_row or not database.has_own_clock:
        return None
    most = _most(room)
    with database.session() as connection:
        if not most or database.is_pooled(connection):
            return None
        values = {
            "worker_id": flush.worker_id, "seen_beat": flush.seen_beat or 0,
            "queues": ARRAYS["text"](list(room.queues or ())), "names": ARRAYS["text"](list(most)),
            "most": ARRAYS["bigint"](list(most.values())),
        }  # fmt: skip
        crash_point("flush.before_commit")
        try:
            with connection.together() as talk:
                looked = talk.execute(LOOK, (flush.worker_id,))
                took = talk.execute(TAKE_ANY if room.queues is None else TAKE_OF, values)
        except Error as error:
            raise database.in_doubt(connection, error) from error
        crash_point("flush.after_commit")
    found = took.fetchall()
    ((now, status, beat_seq, due_at),) = looked.fetchall()
    next_due_in_us = None if due_at is None else max(0, due_at - now)
    rows = sorted(row[1:] for row in found if row[1] is not None)
    if rows:
        slots = room.offer_alike(rows[0][3], len(rows))
        claims = claiming.claims_of(rows, slots, flush.worker_id, counted=False)
        return Flushed(alive=True, claims=list(claims), next_due_in_us=next_due_in_us)
    is_ours = status == WorkerStatus.ALIVE and beat_seq >= (flush.seen_beat or 0)
    is_nothing_ready = found[0][0] == 0 and next_due_in_us != 0
    return Flushed(alive=True, next_due_in_us=next_due_in_us) if is_ours and is_nothing_ready else None


def _most(room: Room) -> dict[str, int]:
    """How many plain tasks of each name it takes."""
    if room.limits:  # of processes that are to be replaced
        return {}
    names = sorted(room.sync_names | room.async_names)
    return {name: few for name in names if (few := room.takes(name)) > 0}
