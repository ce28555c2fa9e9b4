"""A turn in one round trip: settle results and take what is ready, where nothing is special about any of it.

A flush asks, decides and changes, which takes two round trips and more. Where results were all claimed by this worker
and what is ready is of one kind, there is nothing to decide, and all of it is one guarded statement behind the lock on
the row of the worker. Both commit themselves. That nothing is ready is known by it, too.

The same holds as in a flush: RUNNING is committed before anybody hears of the claim (P4), by a worker that is alive and
in a store that knows no less than it did (PROTOCOL 2, 8), and in the order of claims; results are stored under their
fence (PROTOCOL 1), before any task is locked that is to be taken: who locks several tasks does so in one order. What a
waiter waits for is told behind the commit.

Not done here, but by a flush: ends that are no results, or of nodes, or under a key; tasks that were claimed before, or
have a time limit, a key, a workflow, a process of their own; queues with a limit, or paused; tasks that have become
due; several kinds of tasks at once. It finds everything as it was, but for results that are stored already.
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from everbeat.crashpoint import crash_point
from everbeat.decide.room import Room
from everbeat.model.recovery import AllStored, Settled, Settlement
from everbeat.model.state import Change
from everbeat.model.task import Claim
from everbeat.store.messages import Ending, Flush, Flushed
from everbeat.store.postgres.arrays import KINDS as ARRAYS
from everbeat.store.postgres.bells import NotifyBells
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.dialect import in_one, translate
from everbeat.store.postgres.hot import FRESH, FRESH_OF, IS_READY, KINDS, KINDS_OF, LOOK, NOW, READY, SHARED, TYPES
from everbeat.store.postgres.past import Look, Past, Place, Seen, TaskKind
from everbeat.store.verbs import claiming, queueing, settling

OWNED = attrgetter("verdict.change", "claim.worker_id", "claim.workflow_id", "claim.exclusive_key")

# Of a row that was never claimed, as `verbs/unsound.py` and `verbs/claiming.py` mean it.
IS_PLAIN = """(t.fence IN (0, 1) AND t.attempt = 0 AND t.free_attempts = 0 AND t.crash_count = 0 AND t.lost_count = 0
       AND t.dispatch_count = 0 AND t.solo = 0 AND t.good_until IS NULL AND t.exclusive_key IS NULL
       AND t.workflow_id IS NULL AND t.node IS NULL AND t.refs IS NULL
       AND (t.policy IS NULL OR t.policy !~ '"(timeout|isolated)"'))"""

MOMENT = f"(SELECT coalesce(%(now)s::bigint, {NOW}))"


def _named(sql: str, *names: str) -> str:
    for name in names:
        sql = sql.replace("%s", name, 1)
    return sql


SETTLE = _named(
    in_one(settling.COMPLETE, TYPES[settling.COMPLETE], SHARED[settling.COMPLETE]),
    "%(results)s", "%(seqs)s", "%(fences)s", MOMENT, "%(worker_id)s",
)  # fmt: skip

# everbeat_tasks_ready, and the primary key. A statement of its own, so that it sees what was set while the row of the
# worker was waited for. `kind` is a row if the guards hold: without it nothing is changed. A short look (past.py) knows
# kinds by what is `fresh`, and by those of which tasks were left.
TURN = f"""
WITH {{fresh}}kinds (queue, name) AS MATERIALIZED ({{kinds}}),
kind AS MATERIALIZED (
    SELECT max(k.queue) AS queue, max(k.name) AS name FROM kinds k
    HAVING count(*) <= 1
       AND EXISTS (SELECT 1 FROM everbeat_workers w
                    WHERE w.id = %(worker_id)s AND w.status = 'alive' AND w.beat_seq >= %(seen_beat)s::bigint)
       AND NOT EXISTS ({translate(queueing.LIMITS)}){{guard}}
       AND coalesce(({translate(claiming.NEXT_DUE)}) > {MOMENT}, true)),
settled AS ({SETTLE} AND EXISTS (SELECT 1 FROM kind) RETURNING seq),
ready AS MATERIALIZED (
    SELECT t.seq, {IS_PLAIN} AS is_plain
      FROM everbeat_tasks t
     WHERE {{ready}}
       AND (SELECT count(*) FROM settled) = %(ended)s::bigint
     ORDER BY t.priority, t.seq
     LIMIT (SELECT r.most FROM unnest(%(names)s::text[], %(most)s::bigint[]) AS r (name, most)
             WHERE r.name = (SELECT name FROM kind))
       FOR UPDATE SKIP LOCKED),
taken AS (
    UPDATE everbeat_tasks
       SET status = 'RUNNING', fence = fence + 1, worker_id = %(worker_id)s, counted = 0, attempt = attempt + 1,
           started_at = {MOMENT}
     WHERE seq = ANY (ARRAY(SELECT seq FROM ready WHERE (SELECT bool_and(is_plain) FROM ready)))
    RETURNING priority, seq, id, fence - 1, attempt - 1, policy, args, name, queue)
SELECT taken.*, said.* FROM (
    SELECT EXISTS (SELECT 1 FROM kind), NOT EXISTS (SELECT 1 FROM kinds), {NOW},
           CASE WHEN (SELECT count(*) FROM settled) < %(ended)s::bigint THEN ARRAY(SELECT seq FROM settled) END
    ) AS said LEFT JOIN taken ON true"""
OF_KIND = f"{READY} AND t.queue = (SELECT queue FROM kind) AND t.name = (SELECT name FROM kind)"
FROM_THERE = "(t.priority, t.seq) >= (%(priority)s::bigint, %(seq)s::bigint)"
FRESH_ONES = f"{IS_READY} AND t.seq = ANY (ARRAY(SELECT seq FROM fresh WHERE EXISTS (SELECT 1 FROM kind)))"
KINDS_LEFT = f"""
SELECT left_of.queue, left_of.name FROM (SELECT %(queue)s::text, %(name)s::text) AS left_of (queue, name)
 WHERE EXISTS (SELECT FROM everbeat_tasks t
                WHERE {READY} AND t.queue = left_of.queue AND t.name = left_of.name AND {FROM_THERE}
                ORDER BY t.priority, t.seq LIMIT 1)
 UNION SELECT queue, name FROM fresh"""
NONE_BEFORE = """
       AND NOT EXISTS (SELECT FROM fresh f WHERE f.queue = %(queue)s AND f.name = %(name)s
                          AND (f.priority, f.seq) < (%(priority)s::bigint, %(seq)s::bigint))"""


def _turns(kinds: str, fresh: str) -> tuple[str, str, str]:
    """As a whole look, as a short one, and as one to which tasks of one kind were left."""
    since = f"fresh AS MATERIALIZED ({fresh}),\n"
    return (
        TURN.format(fresh="", kinds=kinds, guard="", ready=OF_KIND),
        TURN.format(fresh=since, kinds="SELECT DISTINCT queue, name FROM fresh", guard="", ready=FRESH_ONES),
        TURN.format(fresh=since, kinds=KINDS_LEFT, guard=NONE_BEFORE, ready=f"{OF_KIND} AND {FROM_THERE}"),
    )


TURN_ANY = _turns(_named(KINDS, "%(names)s"), _named(FRESH, "%(since)s::bigint", "%(names)s"))
TURN_OF = _turns(
    _named(KINDS_OF, "%(queues)s", "%(names)s"), _named(FRESH_OF, "%(since)s::bigint", "%(names)s", "%(queues)s")
)


class Turned(NamedTuple):
    flushed: Flushed
    left: Flush | None
    """What takes a flush: nothing of it was done."""
    is_in_vain: bool = False
    """Because something is special, and so will be what comes next."""


def at_once(database: PostgresDatabase, bells: NotifyBells, flush: Flush) -> Turned | None:
    """None: it is not for here, and nothing was asked."""
    room = flush.room
    if room is None or room.limits or not _is_plain(flush):
        return None
    most = _most(room)
    if not (any(most.values()) or flush.endings):
        return None
    past = database.past if most else Past()  # who has no room looks for nothing
    look = past.look()
    if len(look.left) > 1 or not all(name in most for _, name in look.left):
        return None
    moment = database.moment
    endings = sorted(flush.endings, key=settling.seq_of)
    values = _values(flush, endings, most, look, moment)
    ids = [ending.claim.id for ending in endings]
    with database.session() as connection:
        if database.is_pooled(connection):
            return None
        told = bells.words_for_waiters(ids) if ids else ()
        crash_point("flush.before_commit")
        as_whole, as_short, onward = TURN_ANY if room.queues is None else TURN_OF
        turn = as_whole if look.is_whole else onward if look.left else as_short
        looked, took = database.together(connection, (LOOK, (flush.worker_id,)), (turn, values), then=told)
        crash_point("flush.after_commit")
    ((now, _, _, due_at, newest),) = looked.fetchall()
    rows = took.fetchall()
    is_guarded, is_nothing_ready, walked_to, stored = rows[0][-4:]
    past.took(look, walked_to - now)
    if not is_guarded:
        return Turned(Flushed(alive=False), flush, is_in_vain=True)
    if ids and not told:
        bells.ring_waiters(ids)
    claims: list[Claim] = []
    left: dict[TaskKind, Place] = {}
    if rows[0][1] is not None:
        rows.sort()  # by priority and seq
        name, queue = rows[0][7:9]
        slots = room.offer_alike(name, len(rows))
        made = claiming.claims_of(rows, slots, flush.worker_id, (queue, name), counted=False, may_be_nodes=False)
        claims = list(made)
        left = {(queue, name): rows[0][:2]}
    flushed = Flushed(
        alive=True, settlements=AllStored([ending.claim.id for ending in flush.endings]), claims=claims,
        next_due_in_us=None if due_at is None else max(0, due_at - (moment or now)),
    )  # fmt: skip
    if stored is not None:
        return Turned(flushed, replace(flush, endings=_without(flush.endings, frozenset(stored))), is_in_vain=True)
    if claims or is_nothing_ready:
        looked_for_all = most.keys() >= room.sync_names | room.async_names
        past.saw(look, Seen(newest, left) if looked_for_all else None)
        return Turned(flushed, None)
    may_be_full = 0 in most.values()  # of what is ready it took none: of that one it may take none but special ones
    return Turned(flushed, replace(flush, endings=()), is_in_vain=not may_be_full)


def _values(
    flush: Flush, endings: Sequence[Ending], most: dict[str, int], look: Look, moment: int | None
) -> dict[str, Any]:
    """Of whichever of the statements, by name."""
    assert flush.room is not None
    values: dict[str, Any] = {
        "worker_id": flush.worker_id, "seen_beat": flush.seen_beat or 0, "now": moment, "since": look.since,
        "queues": ARRAYS["text"](list(flush.room.queues or ())), "names": ARRAYS["text"](list(most)),
        "most": ARRAYS["bigint"](list(most.values())), "ended": len(endings),
        "results": ARRAYS["bytea"]([ending.verdict.result for ending in endings]),
        "seqs": ARRAYS["bigint"]([ending.claim.seq for ending in endings]),
        "fences": ARRAYS["bigint"]([ending.claim.fence for ending in endings]),
    }  # fmt: skip
    for (queue, name), (priority, seq) in look.left.items():
        values |= {"queue": queue, "name": name, "priority": priority, "seq": seq}
    return values


def whole(flush: Flush, turned: Turned, rest: Flushed) -> Flushed:
    """What became of a flush, some of which was `turned` and the rest was flushed."""
    if turned.left is None or not turned.flushed.alive:
        return rest
    settled = dict(zip(map(id, turned.left.endings), rest.settlements, strict=False))
    settlements: list[Settlement] = [settled.get(id(one), Settled(one.claim.id)) for one in flush.endings]
    return replace(rest, settlements=settlements)


def _is_plain(flush: Flush) -> bool:
    """All that it tells are results, of tasks that nothing follows from."""
    if flush.starts or flush.events or flush.reports or flush.row_by_row or flush.hurries:
        return False
    return {*map(OWNED, flush.endings)} <= {(Change.COMPLETE, flush.worker_id, None, None)}


def _without(endings: Sequence[Ending], stored: frozenset[int]) -> list[Ending]:
    return [ending for ending in endings if ending.claim.seq not in stored]


def _most(room: Room) -> dict[str, int]:
    """How many plain tasks it takes of each name that it looks for. Of some it may take none but special ones."""
    return {name: room.takes(name) for name in sorted(room.sync_names | room.async_names) if room.looks_for(name)}
