"""One PostgreSQL database, opened for one store: its connections, its transactions, and what an outage is called.

* A few connections, made when they are needed and kept for the next one who asks. No threads of its own: a process that
  never closes the store still exits at once. After a fork the child starts with none, and never touches the parent's.
* Every session limits itself (PROTOCOL 34): no transaction of ours can hold up others for longer than that, and the
  server notices within a second when we are gone. A server that keeps no limits is given up on (limited.py).
* Times come from the database, one clock for all machines.
* A connection that was lost before COMMIT changed nothing; one that was lost during it leaves a doubt, which the error
  carries (PROTOCOL 7). Whatever is wrong with the server, the network or the session is `StoreUnavailable`; an error of
  the statement itself stays what it is.
* Behind a pooler that gives each transaction another session, nothing may be left in a session: no prepared statements,
  and limits that are set anew in each transaction. It is known by its process id, which is not the server's.
"""

import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, PipelineStatus, TransactionStatus

from everbeat.clock import Clock
from everbeat.crashpoint import crash_point
from everbeat.errors import StoreUnavailable
from everbeat.model.event import Event
from everbeat.secrecy import located
from everbeat.store.postgres import known
from everbeat.store.postgres.arrays import teach
from everbeat.store.postgres.batch import Answer, Prepared, Statement
from everbeat.store.postgres.limited import LimitedConnection
from everbeat.store.postgres.past import Past
from everbeat.store.postgres.statements import notify
from everbeat.store.postgres.transaction import Connection, Memory, PostgresTransaction
from everbeat.store.postgres.trouble import DEFINITE, IN_THE_WAY, MISSING, REFUSED, may_pass, told
from everbeat.store.transaction import Deadlock, Locked, Question

MOST_CONNECTIONS = 8
CONNECT_SECONDS = 5
FRESH_SECONDS = 0.001
OK, OFF, IDLE = ConnStatus.OK, PipelineStatus.OFF, TransactionStatus.IDLE
LIMITS = {
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "2s",
    "statement_timeout": "30s",
    "client_connection_check_interval": "1s",
    "idle_session_timeout": "0",  # who listens, or holds a lease, has nothing to say for long
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    # Every statement of ours finds its rows by an index; statistics that are out of date must not talk it out of that.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    # And no look at the values could make a better plan: planning anew for each of them takes longer than most run.
    "plan_cache_mode": "force_generic_plan",
}
SINCE = {170000: {"transaction_timeout": "0"}}  # an upgrade takes as long as it takes; the rest is limited above
"""What only servers of that version know."""
HURRIED = {"lock_timeout": "50ms"}
UNLIMITED = {"statement_timeout": "0"}
WALK_SECONDS = 86_400.0
KEEPALIVE = {"tcp_keepalives_idle": "2", "tcp_keepalives_interval": "1", "tcp_keepalives_count": "3",
             "tcp_user_timeout": "5000"}  # fmt: skip
WHO = "SELECT pg_backend_pid(), has_function_privilege('pg_control_system()', 'execute')"
CLUSTER = "SELECT system_identifier FROM pg_control_system()"
STEADY = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class _Place:
    """The right to use a connection. Dropped by somebody who was interrupted, it comes back by itself."""

    __slots__ = ("_home",)

    def __init__(self, home: "SimpleQueue[_Place]") -> None:
        self._home = weakref.ref(home)

    def __del__(self) -> None:
        home = self._home()
        if home is not None:
            home.put(_Place(home))


class PostgresDatabase:
    """`clock` is for tests; left out, it is the database's own."""

    refused: tuple[type[Exception], ...] = REFUSED
    is_same_file = True
    """False: the last connection led to another server than the first (PROTOCOL 8)."""

    def __init__(self, url: str, *, schema: str | None, clock: Clock | None, patience: float) -> None:
        self.location = located(url, schema)
        self.patience = patience
        self.scope = ""
        """What the names of locks begin with: the id of the store, so that two spellings of one URL share them and two
        stores in one database do not (PROTOCOL 41)."""
        self._url = url
        self.schema = schema
        self._clock = clock
        self.when_forked: Callable[[], None] | None = None
        self.when_told: Callable[[Sequence[Event]], None] | None = None
        self.when_done: Callable[[Collection[str]], Sequence[Question]] | None = None
        """What tells those who wait for these. Nothing: it is not the time, and they are to be told later."""
        self._is_closed = False
        self._server: int | None = None
        """What its cluster was called when it was made."""
        self._start_afresh()
        _OPEN.add(self)

    @property
    def moment(self) -> int | None:
        """None: the server tells the time itself, as it always does but in tests."""
        return None if self._clock is None else self._clock.wall_us()

    @property
    def past(self) -> Past:
        return self._memory.past

    # -- transactions -----------------------------------------------------------------------------------------------

    @contextmanager
    def write(
        self, point: str | None = None, *, wipe: bool = False, hurries: bool = False
    ) -> Iterator[PostgresTransaction]:
        with self.session() as connection:
            begin = _begin(connection, HURRIED if hurries else {})
            tx = PostgresTransaction(connection, self.scope, begin=begin, clock=self._clock, memory=self._memory)
            yield tx
            if point:
                crash_point(f"{point}.before_commit")
            self._commit(tx, connection)
            if tx.seen is not None:
                self.past.saw(*tx.seen)
            if point:
                crash_point(f"{point}.after_commit")
        if tx.events and self.when_told is not None:
            self.when_told(tx.events)  # holding nothing: who listens may be slow

    @contextmanager
    def read(self, *, steady: bool = False) -> Iterator[PostgresTransaction]:
        with self.session() as connection:
            begin: list[str] | None = None
            if steady or self.is_pooled(connection):
                begin = [STEADY if steady else "BEGIN", *_begin(connection, {})[1:]]
            yield PostgresTransaction(connection, self.scope, begin=begin, clock=self._clock)

    @contextmanager
    def walk(self) -> Iterator[PostgresTransaction]:
        """For a look at every row, of which there may be many millions: neither side gives it up."""
        with self.session() as connection, connection.taking(WALK_SECONDS):
            begin = _begin(connection, UNLIMITED)
            yield PostgresTransaction(connection, self.scope, begin=begin, clock=self._clock)

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        """For statements of one's own, also behind a pooler, where no session keeps anything."""
        with connection.transaction():
            for said in _begin(connection, {})[1:]:
                connection.execute(said)
            yield

    def empty_log(self) -> None:
        """What was blanked is overwritten when the server vacuums the table and reuses its log: nothing that we do."""

    def session(self) -> AbstractContextManager[Connection]:
        """A connection outside a transaction. What is left open on it is rolled back."""
        return _Session(self)

    def find_place(self) -> _Place:
        try:
            return self._places.get(timeout=self.patience)
        except Empty:
            said = f"{self.location}: all {MOST_CONNECTIONS} connections of this process are in use."
            raise StoreUnavailable(said) from None

    def free(self, place: _Place) -> None:
        self._places.put(place)

    def take(self) -> Connection:
        while self._idle:
            with suppress(IndexError):  # another thread was faster
                connection = self._idle.pop()
                if _is_usable(connection):
                    return connection
                connection.close()
        return self.connect()

    def give_back(self, connection: Connection) -> None:
        pgconn = connection.pgconn
        if pgconn.status != OK:
            return
        try:
            if pgconn.pipeline_status != OFF:
                connection.close()  # somebody was interrupted in the middle
            elif pgconn.transaction_status != IDLE:
                connection.rollback()
        except psycopg.Error:
            connection.close()
        if pgconn.status == OK:
            connection.used_at = time.monotonic()
            self._idle.append(connection)
            if self._is_closed:  # asked last: whoever closes meanwhile finds it
                self._close_idle()

    def leave(self, connection: Connection) -> None:
        """Where nothing can be written: on a standby, or read-only for whoever came meanwhile. Such sessions live on
        when the name of the server leads elsewhere, or new ones may write."""
        connection.close()
        self._close_idle()

    def connect(self, name: str = "everbeat") -> Connection:
        """A session of its own, which the caller closes."""
        try:
            connection = LimitedConnection.connect(
                self._url, autocommit=True, connect_timeout=CONNECT_SECONDS, application_name=name,
                client_encoding="utf8", keepalives=1, keepalives_idle=2, keepalives_interval=1, keepalives_count=3,
                tcp_user_timeout=5000,
            )  # fmt: skip
        except psycopg.Error as error:
            raise self.unavailable(error) from error
        try:
            self._set_up(connection)
        except psycopg.Error as error:
            connection.close()
            raise self.unavailable(error) from error
        return connection

    def is_pooled(self, connection: Connection) -> bool:
        """Whether a pooler gives each transaction on it another session."""
        return connection in _POOLED

    def close(self) -> None:
        self._is_closed = True
        self._close_idle()
        _OPEN.discard(self)

    def after_fork_in_child(self) -> None:
        """Once per child, whoever comes first. Nothing may touch the parent's sessions here, not even a finalizer."""
        if self._pid == os.getpid():
            return
        _ABANDONED.extend(self._all)
        self._start_afresh()
        if self.when_forked is not None:
            self.when_forked()

    # -- within -----------------------------------------------------------------------------------------------------

    def _close_idle(self) -> None:
        while self._idle:
            with suppress(IndexError):  # somebody took it meanwhile
                self._idle.pop().close()

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._places: SimpleQueue[_Place] = SimpleQueue()
        """One for each connection that may be in use: a semaphore, at a fifth of the cost."""
        for _ in range(MOST_CONNECTIONS):
            self._places.put(_Place(self._places))
        clock = self._clock
        self._memory = Memory() if clock is None else Memory(past=Past(lambda: clock.mono_us() / 1_000_000))
        self._idle: list[Connection] = []
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()

    def _set_up(self, connection: Connection) -> None:
        self._all.add(connection)
        teach(connection.adapters)
        connection.prepare_threshold = None  # after a rollback psycopg would throw away what others have prepared
        settings = LIMITS | KEEPALIVE
        if self.schema is not None:
            settings["search_path"] = f'"{self.schema}"'
        version = connection.info.server_version
        if version < 140000:
            raise psycopg.OperationalError(f"PostgreSQL 14 or newer is needed, this is {version // 10000}")
        for since, more in SINCE.items():
            if version >= since:
                settings |= more
        backend, may_ask = connection.execute(WHO).fetchone() or (0, False)
        server = (connection.execute(CLUSTER).fetchone() or (None,))[0] if may_ask else None
        self._server = self._server or server
        self.is_same_file = server == self._server
        if backend == connection.info.backend_pid:
            said, values = _settings(settings, is_local=False)
            connection.execute(said, values)
            connection.prepared = Prepared()
            return
        _POOLED[connection] = {name: value for name, value in settings.items() if name not in KEEPALIVE}

    def alone(self, connection: Connection, sql: str, values: Any, *, then: Sequence[Question] = ()) -> Answer:
        """Run one statement that commits itself, and `then` notifications, in the same round trip. As for COMMIT, a
        lost answer is a doubt; that nobody could be told is none."""
        return self.together(connection, (sql, values), then=then)[0]

    def together(self, connection: Connection, *asked: tuple[str, Any], then: Sequence[Question] = ()) -> list[Answer]:
        """The same for several, which are one transaction."""
        begin = _begin(connection, {}) if self.is_pooled(connection) else ()
        answers: list[Answer] = []
        try:
            with connection.together() as talk:
                for said in begin:
                    talk.execute(said)
                answers += [talk.execute(sql, values) for sql, values in asked]
                if begin:
                    answers.append(talk.execute("COMMIT"))
                elif then:
                    talk.sync()  # it is committed here
                    notify(talk, then)
            if begin and then:
                with connection.together() as talk:
                    notify(talk, then)
        except psycopg.Error as error:
            if not answers or answers[-1].statusmessage is None:
                raise self.in_doubt(connection, error) from error
        return answers

    def at_once(
        self, connection: Connection, statement: Statement, values: Sequence[bytes | None]
    ) -> psycopg.pq.abc.PGresult | None:
        """As `alone`, of a statement that the session knows by name, with nothing behind it. None: it does not."""
        try:
            return known.run(connection, statement, values)
        except psycopg.Error as error:
            raise self.in_doubt(connection, error) from error

    def _commit(self, tx: PostgresTransaction, connection: Connection) -> None:
        """Those who wait for what has ended are told with it, if they can be."""
        told: Sequence[Question] = ()
        if tx.done and self.when_done is not None and not self.is_pooled(connection):
            told = self.when_done(tx.done)
        try:
            tx.commit(told)
        except psycopg.OperationalError as error:
            raise self.in_doubt(connection, error) from error
        if told:
            tx.done.clear()

    def in_doubt(self, connection: Connection, error: psycopg.Error) -> Exception:
        """What a statement that commits, or a COMMIT, has failed with."""
        if not (connection.closed and isinstance(error, psycopg.OperationalError)):
            return error
        return StoreUnavailable(
            f"{self.location}: the connection was lost while committing ({told(error)}).",
            maybe_stored=True,
            may_pass=True,
        )

    def explained(self, error: psycopg.Error) -> Exception:
        if isinstance(error, DEFINITE) and not isinstance(error, MISSING):
            return error
        return self.unavailable(error)

    def unavailable(self, error: psycopg.Error) -> StoreUnavailable:
        said = f"{self.location}: {told(error)}. Nothing was changed by this step."
        kind = Locked if isinstance(error, IN_THE_WAY) else StoreUnavailable
        if isinstance(error, psycopg.errors.DeadlockDetected):
            kind = Deadlock
        return kind(said, may_pass=may_pass(error))


def _begin(connection: Connection, more: Mapping[str, str]) -> list[str]:
    settings = {**_POOLED.get(connection, {}), **more}
    return ["BEGIN", *(f"SELECT set_config('{name}', '{value}', true)" for name, value in settings.items())]


def _settings(settings: Mapping[str, str], *, is_local: bool) -> tuple[str, list[str]]:
    said = ", ".join(["set_config(%s, %s, " + str(is_local).lower() + ")"] * len(settings))
    return f"SELECT {said}", [word for pair in settings.items() for word in pair]


def _is_usable(connection: Connection) -> bool:
    """Nothing comes on a connection that is not used, but that it was ended. That it was just now is left to whoever
    uses it to find out: to ask takes time, and lets another thread go on."""
    if connection.closed:
        return False
    return time.monotonic() < connection.used_at + FRESH_SECONDS or not connection.poll.poll(0)


class _Session:
    """One of the connections of the database, for a while. Not a generator: one of those takes as long as all the rest
    that a sender does for a connection."""

    __slots__ = ("_connection", "_database", "_place")

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def __enter__(self) -> Connection:
        self._place = self._database.find_place()
        try:
            self._connection = self._database.take()
        except BaseException:  # nobody is to be kept waiting by a traceback
            self._database.free(self._place)
            raise
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            self._database.leave(self._connection)
        self._database.give_back(self._connection)
        self._database.free(self._place)
        if isinstance(error, psycopg.Error) and (said := self._database.explained(error)) is not error:
            raise said from error


_POOLED: "weakref.WeakKeyDictionary[Connection, dict[str, str]]" = weakref.WeakKeyDictionary()
"""Connections through a pooler, with what each of their transactions has to set."""
_OPEN: "weakref.WeakSet[PostgresDatabase]" = weakref.WeakSet()
_ABANDONED: list[Connection] = []


def _after_fork_in_child() -> None:
    for database in tuple(_OPEN):
        database.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
