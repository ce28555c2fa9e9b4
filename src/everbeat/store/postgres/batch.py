"""Statements that go to the server together, in one message, and their answers.

psycopg's own pipeline hands each statement to the network by itself and looks at the socket in between: the server
wakes up for each of them, and a statement costs the client a tenth of a millisecond. Here all of them are put into
libpq's buffer first, prepared by name where they are used again and again, and sent at once.

After an error the rest of the batch is not done, up to the next `sync`; it is raised when all answers are there. A
connection on which an exchange was broken off (a signal, a timeout) is closed: nobody knows what it would say next.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import TracebackType
from typing import Any, Protocol, Self

import psycopg
from psycopg import abc, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.waiting import Ready, Wait

from everbeat.store.transaction import Row

MARK = re.compile(r"%(?:%|s|\((?P<name>\w+)\)s)")
USES = 3
"""A statement that was sent so often is prepared: some are made of as many marks as there are values, and seldom the
same twice."""
MOST_PREPARED = 300
FAILED = pq.ExecStatus.FATAL_ERROR


class Answer(Protocol):
    """What is known of a statement once it was sent. A cursor of psycopg is one, too."""

    @property
    def rowcount(self) -> int: ...

    @property
    def statusmessage(self) -> str | None: ...

    def fetchall(self) -> list[Row]: ...

    def fetchone(self) -> Row | None: ...


class Talk(Protocol):
    """Statements on their way to the server, which are all there at the end of a `with`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def execute(self, sql: str, values: Any = None) -> Answer: ...

    def sync(self) -> None:
        """What was sent up to here is one thing, and what comes is another."""


Statement = tuple[bytes, tuple[int, ...]]
"""Its text, and the types of its values."""


class Prepared:
    """The statements that a connection knows by name."""

    def __init__(self) -> None:
        self._uses: dict[Statement, int] = {}
        self._names: dict[Statement, bytes] = {}
        self.known: dict[Statement, bytes] = {}
        """Of which the server has said that it knows them, and by what name."""

    def name_of(self, statement: Statement) -> bytes | None:
        """Nothing, if it is not worth one."""
        if statement in self._names:
            return self._names[statement]
        if len(self._names) >= MOST_PREPARED:
            return None
        if len(self._uses) > 10 * MOST_PREPARED:
            self._uses.clear()
        uses = self._uses[statement] = self._uses.get(statement, 0) + 1
        if uses < USES:
            return None
        self._names[statement] = b"everbeat_%d" % len(self._names)
        return self._names[statement]

    def know(self, statement: Statement) -> None:
        self.known[statement] = self._names[statement]


class _Told:
    """`Answer` out of a batch."""

    __slots__ = ("_result", "_transformer")

    def __init__(self, transformer: abc.Transformer) -> None:
        self._transformer = transformer
        self._result: pq.abc.PGresult | None = None

    def learn(self, result: pq.abc.PGresult | None) -> None:
        """None: it was undone."""
        self._result = result

    @property
    def rowcount(self) -> int:
        return (self._result.command_tuples or 0) if self._result is not None else -1

    @property
    def statusmessage(self) -> str | None:
        said = self._result.command_status if self._result is not None else None
        return said.decode() if said else None

    def fetchall(self) -> list[Row]:
        assert self._result is not None
        self._transformer.set_pgresult(self._result)
        return self._transformer.load_rows(0, self._result.ntuples, tuple)

    def fetchone(self) -> Row | None:
        return next(iter(self.fetchall()), None)


class Batch:
    """A `Talk` that is sent as one message. `prepared` is None where a session is not ours alone."""

    def __init__(self, connection: psycopg.Connection[Row], prepared: Prepared | None) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prepared = prepared
        self._transformer: abc.Transformer = Transformer(connection)
        self._expected: list[_Told | Statement | None] = []
        """In the order of their answers; and what is being prepared. None is a sync."""

    def __enter__(self) -> Self:
        self._pgconn.enter_pipeline_mode()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """A value that can not be sent harms nobody else: what came before it is done, for the caller to undo."""
        try:
            if kind is None:
                self._exchange()
            elif issubclass(kind, Exception):
                with suppress(psycopg.Error):
                    self._exchange()
        finally:
            self._leave()

    def execute(self, sql: str, values: Any = None) -> Answer:
        text, names = numbered(sql)
        transformer, told = self._transformer, _Told(self._transformer)
        given = _in_order(values, names)
        # Dumpers choose: texts are texts, numbers and arrays say what they are.
        raw = transformer.dump_sequence(given, [PyFormat.AUTO] * len(given))
        statement, formats = (text, transformer.types or ()), transformer.formats
        name = self._prepared.name_of(statement) if self._prepared is not None else None
        if name is None or self._prepared is None:
            self._pgconn.send_query_params(text, raw, statement[1], formats, pq.Format.BINARY)
        else:
            if statement not in self._prepared.known and statement not in self._expected:
                self._pgconn.send_prepare(name, text, param_types=statement[1])
                self._expected.append(statement)
            self._pgconn.send_query_prepared(name, raw, formats, pq.Format.BINARY)
        self._expected.append(told)
        return told

    def sync(self) -> None:
        self._pgconn.pipeline_sync()
        self._expected.append(None)

    def _exchange(self) -> None:
        self.sync()
        try:
            answers = self._connection.wait(_answers(self._pgconn, self._expected.count(None)))
            failed = self._learn(iter(answers))
        except psycopg.Error:
            raise
        except BaseException:  # psycopg hears the rest before it lets an interrupt out, and we have not learned it
            self._connection.close()
            raise
        if failed is not None:
            raise failure(self._connection, failed)

    def _learn(self, answers: Iterator[pq.abc.PGresult]) -> pq.abc.PGresult | None:
        """The first of them that says that something failed."""
        failed: pq.abc.PGresult | None = None
        together: list[_Told] = []
        for expected in self._expected:
            answer = next(answers)
            if expected is None:
                while answer.status != pq.ExecStatus.PIPELINE_SYNC:  # what stands alone is committed here, or not
                    failed = failed or answer
                    for told in together:
                        told.learn(None)
                    answer = next(answers)
                together.clear()
            elif answer.status == FAILED:
                failed = failed or answer
            elif isinstance(expected, _Told):
                together.append(expected)
                expected.learn(answer if answer.status != pq.ExecStatus.PIPELINE_ABORTED else None)
            elif self._prepared is not None and answer.status == pq.ExecStatus.COMMAND_OK:
                self._prepared.know(expected)
        return failed

    def _leave(self) -> None:
        try:
            self._pgconn.exit_pipeline_mode()
        except psycopg.Error:  # answers are still to come
            self._connection.close()


def failure(connection: psycopg.Connection[Row], answer: pq.abc.PGresult) -> psycopg.Error:
    """What an answer that says so is called. A session that knows the wrong things is closed."""
    error = psycopg.errors.error_from_result(answer, encoding=connection.info.encoding)
    if not _is_forgotten(error):
        return error
    connection.close()
    return psycopg.OperationalError(f"the session has forgotten what was prepared in it ({error})")


def _is_forgotten(error: psycopg.Error) -> bool:
    """Server and client do not agree on what is prepared: somebody has said DISCARD or DEALLOCATE, a table has another
    shape, or an answer was not heard. Another session knows nothing, and so nothing wrong."""
    wrong = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)
    return isinstance(error, wrong) or (
        isinstance(error, psycopg.errors.FeatureNotSupported) and "cached plan" in str(error)
    )


def _answers(pgconn: pq.abc.PGconn, syncs: int) -> Generator[Wait, Ready | int, list[pq.abc.PGresult]]:
    """Send what is in the buffer; one result for each statement and each sync."""
    found: list[pq.abc.PGresult] = []
    try:
        while pgconn.flush():
            ready = yield from _until(Wait.RW)
            if ready & Ready.R:
                pgconn.consume_input()
        while syncs:
            if pgconn.is_busy():
                yield from _until(Wait.R)
                pgconn.consume_input()
                continue
            result = pgconn.get_result()
            if result is not None:
                found.append(result)
                syncs -= result.status == pq.ExecStatus.PIPELINE_SYNC
            elif pgconn.status == pq.ConnStatus.BAD:
                raise psycopg.OperationalError("the connection was lost")
    except psycopg.OperationalError as lost:
        said = next((one for one in found if one.status == FAILED), None)  # the last words of the server
        if said is None:
            raise
        error = psycopg.errors.error_from_result(said)
        raise error if error.sqlstate else psycopg.OperationalError(str(error)) from lost
    return found


def _until(wanted: Wait) -> Generator[Wait, Ready | int, Ready | int]:
    """Woken with nothing now and then, by a connection that counts the time."""
    while not (ready := (yield wanted)):
        continue
    return ready


def _in_order(values: Any, names: Sequence[str] | None) -> Sequence[Any]:
    if values is None:
        return ()
    if isinstance(values, Mapping):
        return [values[name] for name in names or ()]
    return values if isinstance(values, list | tuple) else list(values)


@lru_cache(maxsize=512)
def numbered(sql: str) -> tuple[bytes, tuple[str, ...] | None]:
    """The statement with marks as the server counts them, and the names of its values, if they have any."""
    names: dict[str, int] = {}
    count = iter(range(1, 100_000))

    def mark(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        name = found["name"]
        if name is None:
            return f"${next(count)}"
        if name not in names:
            names[name] = next(count)
        return f"${names[name]}"

    text = MARK.sub(mark, sql)
    return text.encode(), tuple(names) or None


class OneByOne:
    """A `Talk` on a connection that is not ours, or on which every statement is watched."""

    def __init__(self, execute: Any) -> None:
        self._execute = execute

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, sql: str, values: Any = None) -> Answer:
        answer: Answer = self._execute(sql, values)
        return answer

    def sync(self) -> None:
        pass


class Several:
    """What became of one statement for several rows."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers

    @property
    def rowcount(self) -> int:
        return sum(answer.rowcount for answer in self._answers)

    @property
    def statusmessage(self) -> str | None:
        return self._answers[-1].statusmessage

    def fetchall(self) -> list[Row]:
        return [row for answer in self._answers for row in answer.fetchall()]

    def fetchone(self) -> Row | None:
        return next(iter(self.fetchall()), None)
