"""Many new rows at once, by COPY: the server takes them page by page and looks for no conflicts in advance, which is
twice as fast as any INSERT. What is there already is an error, and ends the transaction.

The rows are made here, in the binary format of COPY: what they have in common is written once and repeated.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import Any

from everbeat.store.postgres.hot import COLUMNS

FEWEST = 200
"""Fewer are sent quicker by one INSERT."""
AT_ONCE = 1000
HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
END = struct.pack("!h", -1)
_COUNT = struct.Struct("!h").pack
_LENGTH = struct.Struct("!i").pack
_NUMBER = struct.Struct("!iq").pack
_NULL = _LENGTH(-1)


def statement(table: str, shared: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> str:
    return f"COPY {table} ({', '.join((*shared, *columns))}) FROM STDIN (FORMAT BINARY)"


def content(shared: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> Iterator[bytes]:
    """ValueError for what no database stores."""
    alike = _COUNT(len(shared) + len(columns)) + b"".join(_field(name, value) for name, value in shared.items())
    pieces = [piece for name, column in columns.items() for piece in _pieces(name, column)]
    rows = zip(repeat(alike, len(next(iter(columns.values())))), *pieces, strict=True)
    yield HEAD
    while some := b"".join(chain.from_iterable(islice(rows, AT_ONCE))):
        yield some
    yield END


def _pieces(name: str, column: Sequence[Any]) -> list[Iterable[bytes]]:
    """The fields of a column, in one piece each or in two. A call for each value would take longer than the server."""
    if None in column or COLUMNS.get(name) == "bigint":
        return [[_field(name, value) for value in column]]
    raw: Sequence[bytes] = column if COLUMNS.get(name) == "bytea" else [value.encode() for value in column]
    return [map(_LENGTH, map(len, raw)), raw]


def _field(name: str, value: Any) -> bytes:
    if value is None:
        return _NULL
    if COLUMNS.get(name) == "bigint":
        return _NUMBER(8, value)
    raw: bytes = value if isinstance(value, bytes) else value.encode()
    return _LENGTH(len(raw)) + raw
