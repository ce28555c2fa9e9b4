"""The floor on PostgreSQL: libpq by way of psycopg, prepared statements, synchronous_commit on, many rows by COPY.

Each transaction is one statement, and so one message and one answer.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import pq

from bench.limit import writes

AT_ONCE = 1000
COLUMNS = ", ".join(writes.NEW)
INSERT = f"INSERT INTO everbeat_tasks ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $7)"
INSERT_SOME = f"""
INSERT INTO everbeat_tasks ({COLUMNS})
SELECT u.id, u.args, $3, $4, $5, $6, $7, $7 FROM unnest($1::text[], $2::bytea[]) AS u (id, args)"""
MANY = 200
"""From so many rows on, COPY is faster."""
TURN = f"""
WITH settled AS (
    UPDATE everbeat_tasks t SET {writes.SETTLE} = $1::bigint, result = u.result
      FROM unnest($2::bigint[], $3::bytea[]) AS u (seq, result) WHERE t.seq = u.seq)
UPDATE everbeat_tasks SET {writes.START} = $1::bigint
 WHERE seq = ANY (ARRAY({writes.READY} $4::bigint FOR UPDATE SKIP LOCKED))
RETURNING seq, id, args, fence"""
STATEMENTS = {b"insert": INSERT, b"insert_some": INSERT_SOME, b"turn": TURN}
SHARED = [one.encode() for one in (writes.NAME, writes.QUEUE, str(writes.PRIORITY), str(writes.MAX_ATTEMPTS))]
HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
END = struct.pack("!h", -1)


class PostgresWriter:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("SET plan_cache_mode = force_generic_plan")
        for name, statement in STATEMENTS.items():
            _checked(self._connection.pgconn.prepare(name, statement.encode()))

    def insert(self, ids: Sequence[str], keys: Sequence[str] = ()) -> None:
        if keys or len(ids) >= MANY:
            self._copy(ids, keys)
            return
        now = str(writes.now_us()).encode()
        if len(ids) == 1:
            self._run(b"insert", [ids[0].encode(), _blob(writes.ARGS), *SHARED, now])
        else:
            self._run(b"insert_some", [_array(ids), _array([_quoted(writes.ARGS)] * len(ids)), *SHARED, now])

    def turn(self, ended: Sequence[int], limit: int) -> list[int]:
        results = _array([_quoted(writes.RESULT)] * len(ended))
        now = str(writes.now_us()).encode()
        started = self._run(b"turn", [now, _array(map(str, ended)), results, str(limit).encode()])
        return [int(started.get_value(row, 0) or 0) for row in range(started.ntuples)]

    def close(self) -> None:
        self._connection.close()

    def _run(self, name: bytes, values: "Sequence[bytes]") -> "pq.abc.PGresult":
        return _checked(self._connection.pgconn.exec_prepared(name, values))

    def _copy(self, ids: Sequence[str], keys: Sequence[str]) -> None:
        columns = f"{COLUMNS}, unique_key" if keys else COLUMNS
        with self._connection.cursor().copy(f"COPY everbeat_tasks ({columns}) FROM STDIN (FORMAT BINARY)") as copy:
            for piece in _content(ids, keys):
                copy.write(piece)


def _content(ids: Sequence[str], keys: Sequence[str]) -> Iterator[bytes]:
    """In the binary format of COPY."""
    now = writes.now_us()
    before = struct.pack("!h", len(writes.NEW) + bool(keys))
    texts = (writes.ARGS, writes.NAME, writes.QUEUE)
    numbers = (writes.PRIORITY, writes.MAX_ATTEMPTS, now, now)
    behind = b"".join(map(_text, texts)) + b"".join(struct.pack("!iq", 8, number) for number in numbers)
    yield HEAD
    for at in range(0, len(ids), AT_ONCE):
        some = ids[at : at + AT_ONCE]
        if keys:
            pairs = zip(some, keys[at : at + AT_ONCE], strict=True)
            yield b"".join([before + _text(one) + behind + _text(key) for one, key in pairs])
        else:
            yield b"".join([before + _text(one) + behind for one in some])
    yield END


def _text(value: str) -> bytes:
    raw = value.encode()
    return len(raw).to_bytes(4, "big") + raw


def _array(values: Any) -> bytes:
    return f"{{{','.join(values)}}}".encode()


def _blob(value: str) -> bytes:
    return f"\\x{value.encode().hex()}".encode()


def _quoted(value: str) -> str:
    """Bytes as they stand in an array."""
    return f'"\\\\x{value.encode().hex()}"'


def _checked(result: "pq.abc.PGresult") -> "pq.abc.PGresult":
    if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        raise psycopg.errors.error_from_result(result)
    return result
