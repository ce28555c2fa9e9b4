"""Statements that are run for many rows at once, and the types of their values: one round trip instead of one per row.

Also here: what PostgreSQL asks for in another way altogether.
"""

from everbeat.store.postgres.dialect import translate
from everbeat.store.verbs import (
    claiming,
    doubting,
    expiring,
    flow_advance,
    flow_reopen,
    flow_start,
    living,
    owning,
    records,
    retaining,
    settling,
    telling,
    unknown,
)

TYPES: dict[str, tuple[str, ...]] = {
    settling.COMPLETE: ("bytea", "bigint", "bigint", "bigint", "text"),
    **dict.fromkeys(
        settling.ENDINGS.values(), ("text", *["bigint"] * 10, *["text"] * 3, "bigint", "text", "bigint")
    ),
    claiming.LAUNCH: ("text", "bigint", "bigint", "bigint", "bigint"),
    claiming.CLAIM: ("text", "bigint", "bigint", "bigint"),
    owning.PROGRESS: ("text", "bigint", "bigint", "text"),
    living.BEAT_FOR_TASK: ("text", "text", "text", "bigint", "text", "bigint", "bigint"),
    records.ADD_HISTORY: (
        "text", "bigint", "text", "text", "text", "text", "text", "bigint", "bigint", "text",
    ),
    records.ADD_ATTEMPT: (
        "text", "bigint", "bigint", "text", "bigint", "bigint", "bigint", "bigint", "text", "text", "text", "text",
        "text", "bigint",
    ),
    records.ADD_EVENT: ("bigint", "text", "text", "text", "text"),
    expiring.EXPIRE: ("bigint", "bigint", "bigint"),
    unknown.FAIL: ("bigint", "text", "text", "bigint", "bigint"),
    telling.PUT_OFF: ("bigint", "text", "bigint", "text"),
    telling.DELIVERED: ("bigint", "bigint", "text"),
    telling.ADDRESSED: ("bigint",),
    retaining.DELETE_TASK: ("bigint",),
    **dict.fromkeys(retaining.OF_A_TASK, ("text",)),
    flow_start.INSERT_NODE: tuple(
        "text" if name in flow_start.TEXTS else "bigint" for name in flow_start.COLUMNS
    ),
    flow_start.INSERT_CALL: ("text", "bigint", "text", "bytea"),
    flow_start.INSERT_EDGE: ("text", "bigint", "bigint"),
    flow_advance.CLOSE: ("text", "text", "text", "bytea", "bigint", "text", "bigint"),
    flow_reopen.REOPEN: ("text", "bigint"),
    flow_reopen.SET_COUNTS: ("bigint", "bigint", "bigint", "text", "bigint"),
}  # fmt: skip

SHARED = {settling.COMPLETE: (1, 4), claiming.LAUNCH: (0, 1, 2), claiming.CLAIM: (0, 1)}
"""Which of their values are the same in all rows, most of the time: sent once, then."""

COLUMNS = {
    "args": "bytea",
    **dict.fromkeys(("priority", "max_attempts", "good_until", "created_at", "run_at", "due_at"), "bigint"),
}
"""Of what is inserted in masses; a text, if nothing else is said."""

READY = "t.status = 'PENDING' AND t.due_at IS NULL AND t.waiting_for IS NULL"
# (EXISTS would be turned into a join, which reads the whole index.)
HAS_ONE = f"""CROSS JOIN LATERAL
       (SELECT 1 FROM everbeat_tasks t WHERE {READY} AND t.queue = q.queue AND t.name = n.name LIMIT 1) AS one"""
# everbeat_tasks_ready, one step per queue, then a look for each name: all in one round trip.
KINDS = f"""
WITH RECURSIVE q (queue) AS (
    (SELECT t.queue FROM everbeat_tasks t WHERE {READY} ORDER BY t.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT t.queue FROM everbeat_tasks t WHERE {READY} AND t.queue > q.queue ORDER BY t.queue LIMIT 1)
      FROM q WHERE q.queue IS NOT NULL)
SELECT q.queue, n.name FROM q CROSS JOIN unnest(%s::text[]) AS n (name) {HAS_ONE}
 WHERE q.queue IS NOT NULL ORDER BY q.queue, n.name"""
KINDS_OF = f"""
SELECT q.queue, n.name FROM unnest(%s::text[]) AS q (queue) CROSS JOIN unnest(%s::text[]) AS n (name) {HAS_ONE}
 ORDER BY q.queue, n.name"""

# What a short look (past.py) finds: by the primary key, each row that was stored since, and never by the index of what
# is ready, for which the condition is said in another way.
FRESH_MOST = 2_000
IS_READY = READY.replace("t.status =", "t.status || '' =")
FRESH = f"""
SELECT t.seq, t.queue, t.name, t.priority
  FROM (SELECT seq, queue, name, priority, status, due_at, waiting_for FROM everbeat_tasks
         WHERE seq >= %s ORDER BY seq LIMIT {FRESH_MOST}) AS t
 WHERE {IS_READY} AND t.name = ANY(%s::text[])"""
FRESH_OF = f"{FRESH} AND t.queue = ANY(%s::text[])"
FRESH_KINDS = "SELECT DISTINCT ON (queue, name) queue, name, priority, seq FROM ({fresh}) AS f ORDER BY 1, 2, 3, 4"

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
NEWEST = "SELECT coalesce(max(seq), 0) FROM everbeat_tasks"
LOOKED = (owning.STANDING, claiming.NEXT_DUE)
# What every flush asks first, with the time and the newest seq, in one statement: the most that a small one pays for is
# their number. Not with them: the limits of queues. Who waits for the row of its worker waits for somebody who may just
# be setting one (queueing.NO_CLAIMS), and a statement sees what there was when it began.
LOOK = f"""
SELECT {NOW}, w.status, w.beat_seq, ({translate(claiming.NEXT_DUE)}), ({NEWEST})
  FROM (SELECT 1) AS one LEFT JOIN LATERAL ({translate(owning.STANDING)}) AS w ON true"""

OTHERWISE = {
    # USAGE, which is what whoever sends has, lets nobody read the sequence itself. Who looks has not even that.
    doubting.NEWEST_SEQ: """
SELECT CASE WHEN has_sequence_privilege('everbeat_tasks_seq_seq', 'USAGE, SELECT')
            THEN coalesce(pg_sequence_last_value('everbeat_tasks_seq_seq'), 0) END""",
}
