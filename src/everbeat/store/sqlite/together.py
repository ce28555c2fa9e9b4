"""The hot changes of many rows as one statement each: SQLite then goes through its program once, and not once per row.

Rows that differ in nothing but their key, and perhaps in one value of bytes, are changed together: the keys travel as
one JSON array of numbers, the bytes as one piece, with another that says where the part of each row begins. What they
share is bound once. Rows that differ in more are other statements.

Rows whose keys follow each other without a gap, as those of tasks do that were sent together, are named by the first
and the last: SQLite walks through them, and finds none by a search of its own.

Things that do not work as well: an array of arrays. Taking one of them to pieces costs SQLite more than changing a row.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import msgspec

from everbeat.store.transaction import columns_of
from everbeat.store.verbs import claiming, settling

FEWEST = 4
"""Fewer rows are quicker one by one."""
SHORT = {claiming.READY: claiming.SHORT_READY}
"""What is read first, as long as it is enough."""
KEYS = {settling.COMPLETE: 2, claiming.LAUNCH: 3}
"""Which of their values is the key of the row."""
BYTES = {settling.COMPLETE: 0}
"""Which of their values is bytes, and may differ."""
WIDTH = 10
"""Digits of a place: all bytes of one statement are fewer than SQLite takes in one value."""
MARK, NUMBERED = re.compile(r"\?"), re.compile(r"\?(\d+)")
to_json = msgspec.json.Encoder().encode

Rows = Sequence[Sequence[Any]]


def in_few(sql: str, rows: Rows) -> list[tuple[str, list[Any]]] | None:
    """Statements that change all rows, with their values. None: each row is better changed by itself."""
    key = KEYS.get(sql)
    if key is None or len(rows) < FEWEST:
        return None
    place = BYTES.get(sql)
    alone = _in_one(sql, rows, key, place)
    if alone is not None:
        return [alone]
    groups: dict[tuple[Any, ...], list[Sequence[Any]]] = {}
    for row in rows:
        shared = tuple(value for number, value in enumerate(row) if number not in (key, place))
        groups.setdefault((place is not None and row[place] is None, shared), []).append(row)
    if len(groups) * FEWEST > len(rows):
        return None
    each = [_in_one(sql, group, key, place) for group in groups.values()]
    return None if None in each else [one for one in each if one is not None]


def _in_one(sql: str, rows: Rows, key: int, place: int | None) -> tuple[str, list[Any]] | None:
    """None: they differ in more than that."""
    columns = columns_of(rows)
    shared = [True] * len(columns)
    for number, column in enumerate(columns):
        if number != key and column.count(column[0]) < len(rows):
            if number != place or None in column:
                return None
            shared[number] = False
    keys = columns[key]
    is_range = are_in_a_row(keys)
    values: list[Any] = [keys[0] if is_range else to_json(keys).decode()]
    values += [column[0] if is_shared else None for column, is_shared in zip(columns, shared, strict=True)]
    values[1 + key] = keys[-1]
    if place is not None and not shared[place]:
        values[1 + place] = b"".join(columns[place])
        values.append(_places(columns[place]))
    text, order = said(sql, place if place is not None and not shared[place] else None, is_range=is_range)
    return text, [values[at] for at in order]


def are_in_a_row(keys: Sequence[Any]) -> bool:
    """They are whole numbers, in order, and nothing is between them that is none of them."""
    first, last = keys[0], keys[-1]
    return type(first) is type(last) is int and last - first == len(keys) - 1 and [*keys] == [*range(first, last + 1)]


def _places(pieces: Sequence[bytes]) -> bytes:
    """Where each begins, counted from 1, and where the last one ends, in so many digits each."""
    return b"".join(b"%010d" % at for at in accumulate(map(len, pieces), initial=1))


@lru_cache(maxsize=16)
def said(sql: str, place: int | None, *, is_range: bool) -> tuple[str, tuple[int, ...]]:
    """A statement for one row as one for many, and which value stands where. The first are the keys, or the first of a
    range whose last is where the key of a row was; those that follow the values of the row. The bytes at `place`, if
    they differ, are those of all rows, and after all values comes where each begins. No mark has its number in the end:
    Python 3.12 before 3.12.4 warns of each that has."""
    key, numbers = KEYS[sql], iter(range(sql.count("?")))
    places, row = f"?{2 + sql.count('?')}", "(seq - ?1)" if is_range else "json_each.key"

    def at(offset: int) -> str:
        return f"CAST(substr({places}, {WIDTH} * ({row} + {offset}) + 1, {WIDTH}) AS INTEGER)"

    def value(mark: re.Match[str]) -> str:
        number = next(numbers)
        if number == key:
            return f"?1 AND ?{2 + key}" if is_range else "json_each.value"
        return f"?{2 + number}" if number != place else f"substr(?{2 + number}, {at(0)}, {at(1)} - {at(0)})"

    before, _, condition = MARK.sub(value, sql).rpartition("WHERE ")
    if is_range:
        numbered = f"{before}WHERE {condition.replace('seq = ', 'seq BETWEEN ', 1)}"
    else:
        numbered = f"{before}FROM json_each(?1) WHERE {condition}"
    return NUMBERED.sub("?", numbered), tuple(int(number) - 1 for number in NUMBERED.findall(numbered))


@lru_cache(maxsize=16)
def recorded(record: str, change: str) -> str:
    """What is written down about each row of a change, as it is said before the change is made."""
    return record.replace("FROM changed", f"FROM everbeat_tasks WHERE {change.rpartition('WHERE ')[2]}")
