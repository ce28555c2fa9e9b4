"""`Store` on a PostgreSQL database."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from everbeat.clock import Clock
from everbeat.errors import StoreUnavailable
from everbeat.model.task import Enqueued, NewTask
from everbeat.store import schema as steps
from everbeat.store.messages import Flush, Flushed, Sent
from everbeat.store.postgres import borrowed, migrate, sending, taking
from everbeat.store.postgres.bells import NotifyBells
from everbeat.store.postgres.checks import Checks
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.lease import Sessions
from everbeat.store.postgres.site import PostgresSite
from everbeat.store.sql.group import GroupCommit
from everbeat.store.sql.store import SQLStore
from everbeat.store.verbs.sending import have_keys

SENDING_LANES, QUIET_LANES = 2, 4
"""The server commits what comes on two connections together; more of them, and each brings less, where senders are
enough to make groups."""
WHOLES = 16
"""So many flushes are not tried in one round trip, after one that was tried in vain: what is special comes again."""


class PostgresStore(PostgresSite, Sessions, Checks, SQLStore):
    database: PostgresDatabase
    bells: NotifyBells
    flushes_at_once = 2
    _wholes = 0

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        create: bool = True,
        clock: Clock | None = None,
        patience: float = 30.0,
    ) -> None:
        super().__init__(url, schema)
        self.database = PostgresDatabase(url, schema=schema, clock=clock, patience=patience)
        self.database.when_forked = self._start_afresh
        try:
            self._open_schema(create=create)
            self.database.scope = self.store_id
        except BaseException:
            self.database.close()
            raise
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Also in the child of a fork, where these locks may be held by threads that exist in the parent only."""
        self.bells = NotifyBells(self.database, store_id=self.database.scope, who_serves=self._who_serves)
        self.database.when_done = self.bells.words_for_waiters
        make = partial(
            GroupCommit, self.database, self._ring_for, quickly=self._send_alike, lanes=SENDING_LANES,
            quiet_lanes=QUIET_LANES,
        )  # fmt: skip
        self._sending, self._keyed = make(), make(is_keyed=True)

    def _send_alike(self, orders: Sequence[Sequence[NewTask]]) -> list[Sequence[Enqueued] | None]:
        return sending.send_alike(self.database, self.bells, orders)

    def _open_schema(self, *, create: bool) -> None:
        found = migrate.found_in(self.database)
        if found is None and create:
            found = migrate.create(self.database)
        if found is None:
            raise StoreUnavailable(
                f"{self.location} has no tables of Everbeat. Nothing was changed. Run: everbeat db migrate"
            )
        steps.check(self.location, found)

    @property
    def _key(self) -> str:
        """The same for every spelling of its URL, and after a change of the password: what a worker left for the next
        one is found."""
        return self.database.scope

    @property
    def engine(self) -> str:
        with self.database.session() as connection:
            return f"PostgreSQL {connection.info.server_version // 10000}.{connection.info.server_version % 10000}"

    def close(self) -> None:
        self.bells.close()
        self.database.close()

    def forget(self) -> None:
        """In the child of a fork, for an owner that opens another store: nothing of the parent's is touched."""
        self.database.after_fork_in_child()
        self.database.close()

    def flush(self, flush: Flush) -> Flushed:
        """After a short look (past.py) a whole one is due in a while."""
        flushed, in_us = self._flush(flush), self.database.past.whole_in_us()
        if in_us is None or flush.room is None:
            return flushed
        due_in_us = flushed.next_due_in_us
        return replace(flushed, next_due_in_us=in_us if due_in_us is None else min(in_us, due_in_us))

    def _flush(self, flush: Flush) -> Flushed:
        turned = self._turn(flush)
        if turned is None:
            return super().flush(flush)
        if turned.left is None:
            return turned.flushed
        if turned.is_in_vain:
            self._wholes = WHOLES
        return taking.whole(flush, turned, super().flush(turned.left))

    def _turn(self, flush: Flush) -> taking.Turned | None:
        if self._wholes:
            self._wholes = max(0, self._wholes - 1)  # two may count at once
            return None
        try:
            return taking.at_once(self.database, self.bells, flush)
        except self.database.refused:  # by one of the rows: a flush finds out which
            return None

    def enqueue(self, tasks: Sequence[NewTask]) -> Sequence[Enqueued]:
        """Those with a key wait for a transaction, which may be a user's, that has sent the same one: apart from the
        others, which wait for nobody."""
        return self._keyed.enqueue(tasks) if have_keys(tasks) else super().enqueue(tasks)

    def enqueue_on(self, connection: Any, tasks: Sequence[NewTask]) -> Sent:
        return borrowed.enqueue_on(connection, tasks, database=self.database, bells=self.bells)

    def data_version(self) -> int:
        """Who asks looks again once a second: a database has no cheaper way to say that somebody has written."""
        return int(time.monotonic())
