"""The hot changes of many rows as one statement each: SQLite then goes through its program once, and not once per row.

What differs from row to row travels as one JSON text; bytes, which JSON can not hold, as one piece, of which each row
has its part. What all rows share is bound once; where they do not share it, the change is made row by row.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from everbeat.store.verbs import claiming, settling

FEWEST = 4
"""Fewer rows are quicker one by one."""
SHARED: dict[str, tuple[int, ...]] = {
    settling.COMPLETE: (1, 4),
    claiming.LAUNCH: (0, 1, 2),
}
BYTES = {settling.COMPLETE: 0}
"""Which of their values is bytes."""
MARK = re.compile(r"\?")
to_json = msgspec.json.Encoder().encode


def in_one(sql: str, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]] | None:
    """The statement for all rows, and its values. None: it must be made row by row."""
    shared = SHARED.get(sql)
    if shared is None or len(rows) < FEWEST:
        return None
    columns = list(zip(*rows, strict=True))
    if any(columns[number].count(columns[number][0]) < len(rows) for number in shared):
        return None
    place = BYTES.get(sql)
    pieces = b""
    own: list[Sequence[Any]] = [column for number, column in enumerate(columns) if number not in (*shared, place)]
    if place is not None:
        pieces = b"".join(piece for piece in columns[place] if piece is not None)
        own += _parts(columns[place])
    return said(sql), [to_json(list(zip(*own, strict=True))).decode(), pieces, *(columns[n][0] for n in shared)]


def _parts(pieces: Sequence[bytes | None]) -> tuple[list[int | None], list[int | None]]:
    """Where each begins, counted from 1, and how long it is."""
    begins: list[int | None] = []
    lengths: list[int | None] = []
    at = 1
    for piece in pieces:
        begins.append(None if piece is None else at)
        lengths.append(None if piece is None else len(piece))
        at += len(piece or b"")
    return begins, lengths


@lru_cache(maxsize=16)
def said(sql: str) -> str:
    """A statement for one row as one for many. ?1 is the JSON text, ?2 the bytes, what is shared comes after them."""
    shared, place = SHARED[sql], BYTES.get(sql)
    own = [number for number in range(sql.count("?")) if number not in (*shared, place)]
    names = iter(range(sql.count("?")))

    def column(mark: re.Match[str]) -> str:
        number = next(names)
        if number in shared:
            return f"?{3 + shared.index(number)}"
        return "substr(?2, u.begins, u.length)" if number == place else f"u.c{number}"

    before, _, condition = MARK.sub(column, sql).rpartition("WHERE ")
    columns = [f"c{number}" for number in own] + (["begins", "length"] if place is not None else [])
    values = ", ".join(f"json_extract(value, '$[{at}]') AS {name}" for at, name in enumerate(columns))
    return f"{before}FROM (SELECT {values} FROM json_each(?1)) AS u WHERE {condition}"


@lru_cache(maxsize=16)
def recorded(record: str, change: str) -> str:
    """What is written down about each row of a change, as it is said before the change is made."""
    return record.replace("FROM changed", f"FROM everbeat_tasks WHERE {change.rpartition('WHERE ')[2]}")
