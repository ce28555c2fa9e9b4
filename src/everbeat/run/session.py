"""Holds this worker's session at the database, pings it every second or sooner, and sees who lost theirs (PROTOCOL 12).

The loss of a session is no death, but others can not know that: so a worker that lost its own beats at once on another
connection, and again every second until it has a session, which it seeks before all else. Then it looks which of its
claims were taken from it meanwhile, and ends their runs.

Where sessions mean nothing, because a pooler is between, this says so once and rests: the heartbeats are left.
"""

from contextlib import suppress

from everbeat.decide.suspect import Watch
from everbeat.errors import StoreUnavailable
from everbeat.model.session import Suspect
from everbeat.report.log import Reporter
from everbeat.run.dispatcher import Dispatcher
from everbeat.run.heartbeat import Heartbeat
from everbeat.store.interface import Session, SessionsUnusable, Store

PING_SECONDS = 1.0
SEEK_SECONDS = 0.25
BEAT_US = 1_000_000
REST_SECONDS = 3600.0


class SessionKeeper:
    name = "session"

    def __init__(
        self, *, worker_id: str, store: Store, dispatcher: Dispatcher, heartbeat: Heartbeat, reporter: Reporter,
        grace_ms: int | None,
    ) -> None:  # fmt: skip
        self._worker_id = worker_id
        self._store = store
        self._dispatcher = dispatcher
        self._heartbeat = heartbeat
        self._reporter = reporter
        self._grace_us = None if grace_ms is None else grace_ms * 1000
        self._session: Session | None = None
        self._watch = Watch()
        self._look_at = 0
        self._has_none = False
        self._is_lost = False
        self._beaten_at: int | None = None
        self.why_unusable: str | None = None
        """Why the loss of a session would mean nothing here."""

    def hold(self) -> None:
        """Before others count on this worker: they are to see that it holds a session from the start."""
        self.close()
        try:
            self._session = self._store.hold_session(self._worker_id)
            self._has_none = self._session is None
        except SessionsUnusable as error:
            self._has_none, self.why_unusable = True, str(error)
            self._reporter.warn("session.unusable", reason=str(error), instead="heartbeats alone tell who is alive")
        self._watch, self._look_at = Watch(), 0

    def tick(self) -> float:
        if self._has_none:
            return REST_SECONDS
        try:
            if self._session is None:
                self._return()
            return REST_SECONDS if self._session is None else self._ping(self._session)
        except StoreUnavailable as error:
            return self._lose(error)

    def suspects(self) -> list[Suspect]:
        """Others than this worker. Called by the reaper's thread."""
        if self._grace_us is None:
            return []
        return [one for one in self._watch.suspects(self._grace_us) if one.worker_id != self._worker_id]

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _ping(self, session: Session) -> float:
        """By a look at the others, if it is time for one."""
        now = self._dispatcher.clock.mono_us()
        if self._grace_us is None or now < self._look_at:
            session.ping()
            return PING_SECONDS
        try:
            self._watch = self._watch.after(session.look())
        except StoreUnavailable:  # the workers' table, because somebody has locked it, or revoked our rights on it
            session.ping()  # it is lost only if this fails, too
            self._watch = Watch()
            return PING_SECONDS
        wait = self._watch.next_look_us(self._grace_us)
        self._look_at = now + wait
        return min(PING_SECONDS, wait / 1e6)

    def _return(self) -> None:
        self.hold()
        if self._is_lost:
            self._is_lost = False
            self._reporter.say("session.returned", worker=self._worker_id)
            self._dispatcher.heed()

    def _lose(self, error: StoreUnavailable) -> float:
        """Until the next turn: none, if it was there until now."""
        self.close()
        self._watch = Watch()
        is_news = not self._is_lost
        if is_news:
            self._is_lost, self._beaten_at = True, None
            self._reporter.warn("session.lost", worker=self._worker_id, error=str(error))
        with suppress(StoreUnavailable):  # the heartbeat complains of that
            self._beat()
        return 0.0 if is_news else SEEK_SECONDS

    def _beat(self) -> None:
        """For the worker alone: what it holds is in the beats of the heartbeat."""
        now = self._dispatcher.clock.mono_us()
        is_due = self._beaten_at is None or now - self._beaten_at >= BEAT_US
        if is_due and not self._dispatcher.mandate.is_displaced and self._heartbeat.dispatcher_turns():
            self._store.renew(self._worker_id, [], self._dispatcher.books.seen_beat)
            self._beaten_at = now
