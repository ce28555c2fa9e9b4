"""Statements that go to the server in one message."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psycopg
import pytest
from psycopg import pq
from psycopg.pq import Trace
from tests.postgres import EmptyDatabase
from tests.words import enqueue

from everbeat.errors import StoreUnavailable
from everbeat.store.postgres import known, limited
from everbeat.store.postgres.batch import USES, Statement
from everbeat.store.postgres.limited import LimitedConnection
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.postgres.transaction import PostgresTransaction

PREPARED = (
    "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'everbeat%%' AND statement LIKE '%%::bigint + 1'"
)


@pytest.fixture
def store(a_database: EmptyDatabase) -> Iterator[PostgresStore]:
    store = PostgresStore(a_database.url(), patience=5.0)
    yield store
    store.close()


@pytest.fixture
def connection(store: PostgresStore) -> Iterator[LimitedConnection]:
    with store.database.session() as connection:
        yield connection


def say(connection: LimitedConnection, *statements: str) -> None:
    """An empty one is a sync."""
    with connection.together() as talk:
        for statement in statements:
            if statement:
                talk.execute(statement)
            else:
                talk.sync()


def plus_one(connection: LimitedConnection, number: int) -> list[tuple[int, ...]]:
    with connection.together() as talk:
        answer = talk.execute("SELECT %s::bigint + 1", (number,))
    return answer.fetchall()


def test_each_statement_has_its_own_answer(connection: LimitedConnection) -> None:
    with connection.together() as talk:
        talk.execute("CREATE TEMP TABLE thing (n BIGINT, said TEXT)")
        added = talk.execute("INSERT INTO thing SELECT n, %(said)s FROM generate_series(1, 3) AS n", {"said": "100 %"})
        found = talk.execute("SELECT n, said FROM thing WHERE n %% 2 = %s AND said LIKE '100 %%' ORDER BY n", (1,))

    assert added.rowcount == 3
    assert added.statusmessage == "INSERT 0 3"
    assert found.fetchall() == [(1, "100 %"), (3, "100 %")]
    assert found.fetchone() == (1, "100 %")


def test_all_of_them_go_in_one_message_to_the_server(connection: LimitedConnection, tmp_path: Path) -> None:
    with (tmp_path / "trace").open("w") as trace:
        connection.pgconn.trace(trace.fileno())
        connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        with connection.together() as talk:
            for number in range(5):
                talk.execute("SELECT %s::bigint", (number,))
        connection.pgconn.untrace()

    sides = [line[0] for line in (tmp_path / "trace").read_text().splitlines() if line[:2] in ("F\t", "B\t")]
    assert "".join(sides).lstrip("F").find("F") == -1, "nothing is sent after the first answer"


def test_after_an_error_the_rest_is_not_done_and_the_connection_can_be_used(connection: LimitedConnection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        say(connection, "CREATE TEMP TABLE before (n BIGINT)", "SELECT 1 / 0", "CREATE TEMP TABLE after (n BIGINT)")

    assert plus_one(connection, 1) == [(2,)]
    assert connection.execute("SELECT to_regclass('before'), to_regclass('after')").fetchone() == (None, None)


def test_a_value_that_can_not_be_sent_leaves_the_connection_in_use(connection: LimitedConnection) -> None:
    connection.execute("BEGIN")

    with pytest.raises(psycopg.DataError), connection.together() as talk:
        talk.execute("SELECT %s", ("a NUL: \0",))

    assert plus_one(connection, 1) == [(2,)]
    connection.execute("COMMIT")


def test_what_was_done_before_a_sync_stays_done(connection: LimitedConnection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        say(connection, "CREATE TEMP TABLE before (n BIGINT)", "", "SELECT 1 / 0")

    assert connection.execute("SELECT count(*) FROM before").fetchone() == (0,)


def test_a_statement_that_is_used_again_and_again_is_prepared_once(connection: LimitedConnection) -> None:
    for number in range(USES - 1):
        plus_one(connection, number)
    assert connection.execute(PREPARED, ()).fetchone() == (0,)

    assert [plus_one(connection, number) for number in range(5)] == [[(number + 1,)] for number in range(5)]
    with connection.together() as talk:
        both = [talk.execute("SELECT %s::bigint + 1", (number,)) for number in (7, 8)]

    assert [answer.fetchall() for answer in both] == [[(8,)], [(9,)]]
    assert connection.execute(PREPARED, ()).fetchone() == (1,)


def test_what_could_not_be_prepared_after_an_error_is_prepared_the_next_time(connection: LimitedConnection) -> None:
    for _ in range(USES - 1):
        say(connection, "SELECT 6")

    with pytest.raises(psycopg.errors.DivisionByZero):
        say(connection, "SELECT 1 / 0", "SELECT 6")

    say(connection, "SELECT 6")
    say(connection, "SELECT 6")


def test_a_rollback_does_not_forget_what_is_prepared(connection: LimitedConnection) -> None:
    for number in range(USES):
        plus_one(connection, number)

    connection.execute("BEGIN")
    connection.rollback()

    assert plus_one(connection, 5) == [(6,)]


def test_a_session_that_has_forgotten_what_was_prepared_is_left(store: PostgresStore) -> None:
    for _ in range(10 * USES):
        enqueue(store)
    with store.database.session() as connection:
        connection.execute("DEALLOCATE ALL")

    with pytest.raises(StoreUnavailable, match="has forgotten what was prepared"):
        enqueue(store)

    assert enqueue(store)


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kind", [Interrupted, KeyboardInterrupt])
def test_a_connection_on_which_somebody_was_interrupted_is_closed(
    connection: LimitedConnection, kind: type[BaseException], by_name: bool
) -> None:
    """What is still to come would be taken for the answer to something else, and what was prepared is not known."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise kind

    usual = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident or 0
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGUSR1)).start()
    try:
        with pytest.raises(kind):
            run(connection, SLEEP, b"20") if by_name else say(connection, "SELECT pg_sleep(20)")
    finally:
        signal.signal(signal.SIGUSR1, usual)

    assert connection.closed


def test_what_can_not_be_committed_at_a_sync_is_an_error_of_the_database(connection: LimitedConnection) -> None:
    connection.execute(
        "CREATE TEMP TABLE pair (a BIGINT PRIMARY KEY, b BIGINT REFERENCES pair DEFERRABLE INITIALLY DEFERRED)"
    )

    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        say(connection, "INSERT INTO pair VALUES (1, 2)")

    with pytest.raises(psycopg.errors.ForeignKeyViolation), connection.together() as talk:
        added = talk.execute("INSERT INTO pair VALUES (1, 2)")
    assert added.statusmessage is None, "it was undone"
    assert plus_one(connection, 1) == [(2,)]


def test_a_statement_that_is_prepared_and_not_known_to_be_is_sent_on_another_connection(store: PostgresStore) -> None:
    for _ in range(10 * USES):  # also without a notification, which is a statement of its own
        enqueue(store)
    with store.database.session() as connection:
        assert connection.prepared is not None
        connection.prepared.known.clear()

    with pytest.raises(StoreUnavailable):
        enqueue(store)

    assert enqueue(store)


def test_what_is_stored_is_stored_though_nobody_could_be_told(store: PostgresStore) -> None:
    failing = [("SELECT 1 / %s", (0,))]
    with store.database.session() as connection:
        answer = store.database.alone(connection, "CREATE TABLE told (n BIGINT)", (), then=failing)
    assert answer.statusmessage == "CREATE TABLE"

    with store.database.session() as connection:
        tx = PostgresTransaction(connection, "scope", begin=["BEGIN"])
        tx.run("INSERT INTO told VALUES (?)", (1,))
        tx.commit(failing)  # type: ignore[arg-type]

    with store.database.read() as tx:
        assert tx.all("SELECT n FROM told") == [(1,)]


def test_a_connection_that_was_left_in_the_middle_is_not_used_again(store: PostgresStore) -> None:
    with store.database.session() as connection:
        connection.pgconn.enter_pipeline_mode()

    assert connection.closed
    assert enqueue(store)


# -- one statement that is known by name ------------------------------------------------------------------------------

SLEEP: Statement = (b"SELECT pg_sleep($1::text::float8)", (25,))
LENGTH: Statement = (b"SELECT length($1)::text", (25,))


def run(connection: LimitedConnection, statement: Statement, value: bytes) -> pq.abc.PGresult:
    while (answer := known.run(connection, statement, [value])) is None:
        continue
    return answer


def test_a_value_larger_than_the_network_takes_at_once_arrives(connection: LimitedConnection) -> None:
    assert run(connection, LENGTH, b"x" * 30_000_000).get_value(0, 0) == b"30000000"
    assert run(connection, LENGTH, b"x").get_value(0, 0) == b"1"


def test_an_answer_is_not_waited_for_without_end(
    connection: LimitedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(connection, SLEEP, b"0")
    monkeypatch.setattr(limited, "ANSWER_SECONDS", 0.3)

    with pytest.raises(psycopg.OperationalError, match="has not answered"):
        run(connection, SLEEP, b"20")

    assert connection.closed


def test_a_connection_that_is_ended_meanwhile_is_closed(store: PostgresStore, connection: LimitedConnection) -> None:
    def end() -> None:
        with store.database.session() as other:
            other.execute("SELECT pg_terminate_backend(%s::int)", (connection.info.backend_pid,))

    run(connection, SLEEP, b"0")
    threading.Timer(0.3, end).start()

    with pytest.raises(psycopg.OperationalError):
        run(connection, SLEEP, b"20")

    assert connection.closed


def test_a_wrong_value_leaves_the_connection_in_use(connection: LimitedConnection) -> None:
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        run(connection, SLEEP, b"long")

    assert run(connection, LENGTH, b"xy").get_value(0, 0) == b"2"
