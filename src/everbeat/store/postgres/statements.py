"""Statements as PostgreSQL is told them: many rows as arrays, any number of keys as one, what is ready page by page;
and how those who wait are notified."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from everbeat.store.postgres.arrays import KINDS as ARRAYS
from everbeat.store.postgres.batch import Answer, Several, Talk
from everbeat.store.postgres.dialect import bind, in_one, names_in, translate
from everbeat.store.postgres.hot import (
    COLUMNS,
    FRESH,
    FRESH_KINDS,
    FRESH_MOST,
    FRESH_OF,
    KINDS,
    KINDS_OF,
    SHARED,
    TYPES,
)
from everbeat.store.transaction import NOT_ALL, Question, RowRefused, columns_of

AHEAD = "{sql}{after} ORDER BY priority, seq LIMIT %s FOR UPDATE SKIP LOCKED"
AFTER = " AND (priority, seq) > (%s, %s)"
FROM = " AND (priority, seq) >= (%s, %s)"
FIRST, NOWHERE = (-(1 << 63), 0), ((1 << 63) - 1, 0)
"""Before and behind all tasks."""
SINCE = f""" AND (priority, seq) < (%s, %s)
   AND seq = ANY (ARRAY(SELECT seq FROM everbeat_tasks WHERE seq >= %s ORDER BY seq LIMIT {FRESH_MOST}))"""


def notify(talk: Talk, said: Sequence[Question]) -> None:
    """After a commit, in a transaction that is ended in words: that the queue of notifications is full shows at its
    end, and has nothing to do with what was committed."""
    if said:
        talk.execute("BEGIN")
        for question in said:
            talk.execute(*question)
        talk.execute("COMMIT")


def many(talk: Talk, sql: str, rows: Sequence[Any]) -> Answer:
    types = TYPES.get(sql)
    if len(rows) == 1:
        return talk.execute(translate(sql), rows[0])
    if types is None:
        return Several([talk.execute(translate(sql), row) for row in rows])
    if isinstance(rows[0], dict):
        names = names_in(sql)
        columns = [[row[name] for row in rows] for name in names]
    else:
        columns = [*map(list, columns_of(rows))]
    shared = SHARED.get(sql, ())
    if any(columns[number].count(columns[number][0]) < len(rows) for number in shared):
        shared = ()
    values = [ARRAYS[types[number]](column) for number, column in enumerate(columns) if number not in shared]
    return talk.execute(in_one(sql, types, shared), [*values, *(columns[n][0] for n in shared)])


def ask_kinds(talk: Talk, queues: Collection[str] | None, names: Sequence[str]) -> Answer:
    if queues is None:
        return talk.execute(KINDS, [ARRAYS["text"](names)])
    return talk.execute(KINDS_OF, [ARRAYS["text"](list(queues)), ARRAYS["text"](names)])


def ask_fresh_kinds(talk: Talk, since: int, queues: Collection[str] | None, names: Sequence[str]) -> Answer:
    """With the first task of each."""
    if queues is None:
        return talk.execute(FRESH_KINDS.format(fresh=FRESH), [since, ARRAYS["text"](names)])
    values = [since, ARRAYS["text"](names), ARRAYS["text"](list(queues))]
    return talk.execute(FRESH_KINDS.format(fresh=FRESH_OF), values)


def bound(sql: str, values: Any) -> tuple[str, Any]:
    """Any number of keys is one array."""
    if isinstance(values, tuple) and values and isinstance(values[-1], tuple):
        values = (*values[:-1], keys(values[-1]))
    return bind(sql, values)


def keys(wanted: Sequence[Any]) -> list[Any]:
    """Numbers, or texts; some of them may be missing."""
    first = next((one for one in wanted if one is not None), None)
    return ARRAYS["bigint" if isinstance(first, int) else "text"](wanted)


@lru_cache(maxsize=16)
def all_or_error(sql: str) -> str:
    """A change that fails unless it changes exactly as many rows as its last value says. Whatever was sent behind it,
    the commit too, is then not done, so nobody has to wait for its answer."""
    return f"WITH changed AS ({translate(sql)} RETURNING 1) SELECT 1 / (count(*) = %s)::int FROM changed"


def expect_all(cursor: Answer, count: int) -> None:
    if cursor.rowcount != count:
        raise RowRefused(NOT_ALL)


def nothing() -> None:
    pass


def first(cursor: Answer) -> Any:
    row = cursor.fetchone()
    return row[0] if row else 0


@lru_cache(maxsize=16)
def page(sql: str, after: str = "") -> str:
    return AHEAD.format(sql=translate(sql), after=after)


@lru_cache(maxsize=16)
def page_from(sql: str, after: str = "") -> str:
    """Of what comes from a place on in the order of claims."""
    return AHEAD.format(sql=translate(sql) + FROM, after=after)


@lru_cache(maxsize=16)
def page_since(sql: str, after: str = "") -> str:
    """Of what has a seq since then, and comes before a place in the order of claims."""
    since = translate(sql).replace("status = 'PENDING'", "status || '' = 'PENDING'") + SINCE
    return AHEAD.format(sql=since, after=after)


@lru_cache(maxsize=16)
def recorded(change: str, records: tuple[str, ...]) -> str:
    """A change, and what is written down about each row of it, in one; it answers how many there were."""
    parts = ", ".join(f"record_{number} AS ({record})" for number, record in enumerate(records))
    return translate(f"WITH changed AS ({change}), {parts} SELECT count(*) FROM changed")


@lru_cache(maxsize=64)
def insertion(table: str, shared: tuple[str, ...], columns: tuple[str, ...]) -> str:
    common = ", ".join(f"%s::{COLUMNS.get(name, 'text')}" for name in shared)
    arrays = ", ".join(f"%s::{COLUMNS.get(name, 'text')}[]" for name in columns)
    own = ", ".join(columns)
    return (
        f"INSERT INTO {table} ({', '.join(shared)}, {own}) SELECT {common}, {own} "
        f"FROM unnest({arrays}) AS u({own}) ON CONFLICT DO NOTHING"
    )
