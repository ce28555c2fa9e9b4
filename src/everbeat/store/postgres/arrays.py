"""Values of many rows on their way to PostgreSQL: one array for each column, written in one go.

psycopg takes any list, and looks at each value of it several times to find out what it is. Here the statement knows.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8Dumper

_HEAD = struct.Struct("!iiIii")  # dimensions, whether there are NULLs, type of the values, how many, first index
_LENGTH = struct.Struct("!i").pack
_NUMBER = struct.Struct("!q").pack
_NULL = _LENGTH(-1)


class Numbers(list[Any]):
    pass


class Gaps(list[Any]):
    """Numbers, some of which are missing."""


class Texts(list[Any]):
    pass


class Blobs(list[Any]):
    pass


def _numbers(values: Sequence[Any]) -> list[Any]:
    return Gaps(values) if None in values else Numbers(values)


KINDS: dict[str, Callable[[Sequence[Any]], list[Any]]] = {"bigint": _numbers, "text": Texts, "bytea": Blobs}
"""By the type of their values."""


def array_of(kind: int, values: Sequence[bytes | None]) -> bytes:
    """An array of values of this type, as they travel."""
    pieces = [_HEAD.pack(1, int(None in values), kind, len(values), 1)]
    for value in values:
        if value is None:
            pieces.append(_NULL)
        else:
            pieces.append(_LENGTH(len(value)))
            pieces.append(value)
    return b"".join(pieces)


class _NumbersDumper(Dumper):
    oid = 1016

    def dump(self, obj: list[int]) -> Buffer | None:
        return b"{%b}" % str(list(obj))[1:-1].encode()


class _BinaryDumper(Dumper):
    format = Format.BINARY
    of: ClassVar[int]

    def _dump(self, values: Sequence[bytes | None]) -> bytes:
        return array_of(self.of, values)


class _GapsDumper(_BinaryDumper):
    """Written as text they would depend on array_nulls."""

    oid, of = 1016, 20

    def dump(self, obj: list[int | None]) -> Buffer | None:
        return self._dump([None if value is None else _NUMBER(value) for value in obj])


class _TextsDumper(_BinaryDumper):
    oid, of = 1009, 25

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        encoding = self.connection.info.encoding if self.connection else "utf-8"
        self._encoding = "utf-8" if encoding == "ascii" else encoding  # SQL_ASCII takes what it is given

    def dump(self, obj: list[str | None]) -> Buffer | None:
        return self._dump([None if value is None else value.encode(self._encoding) for value in obj])


class _BlobsDumper(_BinaryDumper):
    oid, of = 1001, 17

    def dump(self, obj: list[bytes | None]) -> Buffer | None:
        return self._dump(obj)


def teach(adapters: AdaptersMap) -> None:
    """Let a connection, or a cursor, know them; and whole numbers are BIGINT, as every one of ours is."""
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(Numbers, _NumbersDumper)
    adapters.register_dumper(Gaps, _GapsDumper)
    adapters.register_dumper(Texts, _TextsDumper)
    adapters.register_dumper(Blobs, _BlobsDumper)
