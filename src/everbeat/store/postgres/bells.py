"""`Bells` through LISTEN and NOTIFY: workers that something may be ready, waiters that their task has ended.

One session per store listens, in a thread that exists only while somebody waits; it rings the bells of those whom it
concerns. When the session is lost everybody is rung and looks again, and the thread connects anew.

A NOTIFY inside a writing transaction takes a lock of the whole cluster until its commit is flushed, and eight producers
lose most of their speed. So it is sent after the commit, in a transaction of its own that writes nothing, and at most
once in PAUSE seconds per process; the last one is never left out. Who sends and then waits, one task after the other,
is one of few: for it, and for the few tasks that end at a time then, SHORT_PAUSE is enough.

One channel for each store, fixed by its id (PROTOCOL 41). A message is a JSON list of words: `["r", queue, name]` of
ready work, `["d", digest]` of a task that has ended, `["s", worker]` that somebody wants a run of this worker to end;
and `["a"]`: what is ready now was there before, so short looks do not find it (past.py).
"""

import hashlib
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
import psycopg

from everbeat.errors import StoreUnavailable
from everbeat.store.bells import can_run
from everbeat.store.postgres.connection import PostgresDatabase
from everbeat.store.postgres.transaction import Connection
from everbeat.store.transaction import Kind
from everbeat.store.verbs.living import Served

T = TypeVar("T")

PAUSE = 0.02
SHORT_PAUSE, FEW = 0.002, 4
"""Between messages that somebody waits for: whoever sends a task begins to wait, or so few tasks have ended."""
RECONNECT = (0.05, 0.2, 1.0)
LISTEN_SECONDS = 1.0
LOOK_SECONDS = 10.0
"""How often the listener asks whether it is still needed."""
LINGER_SECONDS = 60.0
STAY_SECONDS = 1.0
"""After so long without a call the thread that sends late words ends: it keeps its store alive."""
SERVED_SECONDS = 1.0
"""How long what a worker serves is taken for known."""
LONGEST = 7_900
"""Bytes of a message; PostgreSQL takes fewer than 8,000."""
NOTIFY = "SELECT pg_notify(%s, %s)"
# A queue that is full would not let the transaction commit.
NOTIFY_IF_POSSIBLE = f"{NOTIFY} WHERE pg_notification_queue_usage() < 0.9"
READY, DONE, STOP = "r", "d", "s"
TO_ALL = READY, None, None
AGAIN = ("a",)

Word = tuple[str | None, ...]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Word]).decode
Said = tuple[str, tuple[str, str]]
"""A statement and its values."""


class Bell:
    """An eventfd, so that it can be waited for by a thread, a poll or an event loop."""

    def __init__(
        self, board: "Switchboard", *, word: Word | None = None, concerns: Callable[[Word], bool] | None = None
    ) -> None:
        """Rings for one word, or for every word that `concerns` accepts. A busy store sends thousands in a second, so a
        bell for one word is found by it and never asked."""
        self._board = board
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_stop = False
        self._hung = threading.Lock()
        """A bell that is closed is not rung: its number may be another file's by then."""
        self.word = word
        self.concerns = concerns

    def fileno(self) -> int:
        return self._fd

    def ring(self, *, is_stop: bool = False) -> None:
        with self._hung:
            self._is_stop |= is_stop
            if self._fd >= 0:
                with suppress(BlockingIOError):
                    os.eventfd_write(self._fd, 1)

    def clear(self) -> bool:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        is_stop, self._is_stop = self._is_stop, False
        return is_stop

    def wait(self, timeout: float) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(timeout * 1000):
            self.clear()

    def close(self) -> None:
        self._board.take_down(self)
        with self._hung:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


class Switchboard:
    """The listening end."""

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database = database
        self._channel = channel
        self._lock = threading.Lock()
        self._bells: set[Bell] = set()
        self._by_word: defaultdict[Word, set[Bell]] = defaultdict(set)
        """Those of them that wait for one."""
        self._thread: threading.Thread | None = None
        self._listens = threading.Event()
        self._last_used = 0.0

    def hang(self, bell: Bell) -> Bell:
        """It is heard from now on; if the server does not answer in time, from then on."""
        try:
            with self._lock:
                self._bells.add(bell)
                if bell.word is not None:
                    self._by_word[bell.word].add(bell)
                if not _works(self._thread):
                    self._thread = threading.Thread(target=self._run, name="everbeat-listen", daemon=True)
                    self._thread.start()
            self._listens.wait(LISTEN_SECONDS)
        except BaseException:  # an interrupt: nobody has it
            bell.close()
            raise
        return bell

    @property
    def listens(self) -> bool:
        return self._listens.is_set()

    def take_down(self, bell: Bell) -> None:
        with self._lock:
            self._bells.discard(bell)
            if bell.word is not None:
                self._by_word[bell.word].discard(bell)
                if not self._by_word[bell.word]:
                    del self._by_word[bell.word]

    def _run(self) -> None:
        failures = 0
        while self._is_needed():
            try:
                with self._database.connect("everbeat listen") as connection:
                    connection.execute(f'LISTEN "{self._channel}"')
                    self._listens.set()
                    if failures:
                        self._ring_all()
                    failures = 0
                    while self._is_needed():
                        self._hear(connection)
            except (StoreUnavailable, psycopg.Error):
                self._listens.clear()
                self._ring_all()
                time.sleep(RECONNECT[min(failures, len(RECONNECT) - 1)])
                failures += 1

    def _is_needed(self) -> bool:
        """Also for a while after the last bell was taken down: who has waited once will wait again."""
        with self._lock:
            if self._bells:
                self._last_used = time.monotonic()
            elif time.monotonic() - self._last_used > LINGER_SECONDS:
                self._thread = None
                self._listens.clear()
            return self._thread is not None

    def _hear(self, connection: Connection) -> None:
        """Waits by itself: psycopg would look at its watch ten times a second."""
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.poll(LOOK_SECONDS * 1000)
        connection.pgconn.consume_input()
        while message := connection.pgconn.notifies():
            words = _decode(message.extra)
            if AGAIN in words:
                self._database.past.forget()
            others = [word for word in words if word[0] != DONE]
            with self._lock:
                called = {bell for word in words for bell in self._by_word.get(word, ())}
                listening = [(bell, bell.concerns) for bell in self._bells if bell.concerns and others]
            for bell in called:
                bell.ring()
            for bell, concerns in listening:
                heard = [word for word in others if concerns(word)]
                if heard:
                    bell.ring(is_stop=any(word[0] == STOP for word in heard))

    def _ring_all(self) -> None:
        self._database.past.forget()
        with self._lock:
            for bell in self._bells:
                bell.ring(is_stop=True)


class Ringer:
    """The speaking end: words are gathered while the last message is still fresh, and then sent by a thread. It stays
    for a while, because a busy process would have to start another fifty times a second."""

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database = database
        self._channel = channel
        self._lock = threading.RLock()
        """Entered by itself: an interrupt on the way into a condition would take it along."""
        self._changed = threading.Condition(self._lock)
        self._words: set[Word] = set()
        self._sent_at = 0.0
        self._due_at: float | None = None
        """When the words that were gathered are to be sent."""
        self._thread: threading.Thread | None = None

    def ring(self, words: Collection[Word], pause: float) -> None:
        """After a commit; never fails: whoever does not hear it will look by itself."""
        if self._due_at is not None and self._words.issuperset(words) and _works(self._thread):
            return  # they were gathered by somebody else, and are still to be sent
        with self._lock:
            self._words.update(words)
            is_now = self._due_at is None and self._has_passed(pause)
            if not is_now:
                self._call(self._sent_at + pause)
        if is_now:
            self.send()

    def take(self, words: Collection[Word], pause: float) -> list[Said]:
        """The messages that the caller has to send now. None if it is too soon after the last: then call `ring`."""
        if self._due_at is not None:
            return []
        with self._lock:
            if self._due_at is not None or not self._has_passed(pause):
                return []
            self._sent_at = time.monotonic()
        return [(NOTIFY, (self._channel, message)) for message in _messages({*words})]

    def hurry(self) -> None:
        """Somebody begins to wait for what has not been said yet."""
        with self._lock:
            if self._due_at is None:
                return
            is_now = self._has_passed(SHORT_PAUSE)
            if not is_now:
                self._call(self._sent_at + SHORT_PAUSE)
        if is_now:
            self.send()

    def send(self) -> None:
        """What is still to be said, now."""
        with self._lock:
            words, self._words, self._due_at = self._words, set(), None
            if words:
                self._sent_at = time.monotonic()
        if words:
            with suppress(StoreUnavailable), self._database.session() as connection:
                for message in _messages(words):
                    connection.execute(NOTIFY, (self._channel, message))

    def _has_passed(self, pause: float) -> bool:
        return time.monotonic() >= self._sent_at + pause

    def _call(self, due_at: float) -> None:
        if _works(self._thread) and self._due_at is not None and self._due_at <= due_at:
            return
        self._due_at = due_at if self._due_at is None else min(due_at, self._due_at)
        if not _works(self._thread):
            self._thread = threading.Thread(target=self._send_late, name="everbeat-notify", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _send_late(self) -> None:
        while self._await_call():
            self.send()

    def _await_call(self) -> bool:
        """Until what was gathered is to be sent. False: nobody has called for a while."""
        with self._lock:
            if not self._changed.wait_for(lambda: self._due_at is not None, STAY_SECONDS):
                self._thread = None
                return False
            while self._due_at is not None and (left := self._due_at - time.monotonic()) > 0:
                self._changed.wait(left)
            return True


class NotifyBells:
    def __init__(
        self, database: PostgresDatabase, *, store_id: str, who_serves: Callable[[], dict[str, Served]]
    ) -> None:
        self._channel = f"everbeat {store_id}"
        self._past = database.past
        self._board = Switchboard(database, self._channel)
        self._ringer = Ringer(database, self._channel)
        self._who_serves = who_serves
        self._served: dict[str, Served] = {}
        self._served_at = 0.0

    @property
    def are_light(self) -> bool:
        return self._board.listens

    def for_worker(self, worker_id: str) -> Bell:
        def concerns(word: Word) -> bool:
            match word:
                case ("r", None, _):
                    return True
                case ("r", str(queue), name):
                    return can_run(self._serves(worker_id), {(queue, name)})
                case ("s", owner):
                    return owner == worker_id
            return False

        return self._board.hang(Bell(self._board, concerns=concerns))

    def for_waiter(self, task_id: str) -> Bell:
        self._ringer.hurry()  # first: an interrupt in it leaves no bell behind
        return self._board.hang(Bell(self._board, word=(DONE, digest(task_id))))

    def ring_workers(self, kinds: set[Kind] | None) -> None:
        if kinds != set():
            self._past.forget()
            self._ringer.ring([*([TO_ALL] if kinds is None else [(READY, *kind) for kind in kinds]), AGAIN], PAUSE)

    def ring_with(self, kinds: Iterable[Kind], commit: Callable[[Sequence[Said]], T]) -> T:
        """As `ring_workers`, for something that is committed now: it is told with the commit, right behind it and in a
        transaction of its own, if that is soon enough after the last time."""
        words = [(READY, *kind) for kind in kinds]
        said = self._ringer.take(words, PAUSE)
        committed = commit(said)
        if not said:
            self._ringer.ring(words, PAUSE)
        return committed

    def ring_owners(self, workers: Collection[str]) -> None:
        self._ringer.ring([(STOP, worker) for worker in workers], PAUSE)

    def ring_waiters(self, tasks: Collection[str]) -> None:
        self._ringer.ring([(DONE, digest(task_id)) for task_id in tasks], _pause_after(tasks))

    def words_for_waiters(self, tasks: Collection[str]) -> list[Said]:
        """As `ring_waiters`, for a commit that is made now."""
        return self._ringer.take([(DONE, digest(task_id)) for task_id in tasks], _pause_after(tasks))

    def ring_at_commit(self, connection: Connection, kinds: set[Kind]) -> None:
        """In the user's own transaction: nobody else knows when it commits, which may be long after the task got its
        number."""
        for message in _messages([*((READY, *kind) for kind in kinds), AGAIN]):
            connection.execute(NOTIFY_IF_POSSIBLE, (self._channel, message))

    def close(self) -> None:
        self._ringer.send()

    def _serves(self, worker_id: str) -> Served | None:
        if time.monotonic() - self._served_at > SERVED_SECONDS:
            self._served, self._served_at = self._who_serves(), time.monotonic()
        return self._served.get(worker_id)


def _works(thread: threading.Thread | None) -> bool:
    """An interrupt may have come before it was started."""
    return thread is not None and thread.is_alive()


def digest(task_id: str) -> str:
    return hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()


def _pause_after(ended: Collection[str]) -> float:
    return SHORT_PAUSE if len(ended) <= FEW else PAUSE


def _messages(words: Collection[Word]) -> Iterable[str]:
    """A queue whose name, written by hand, fits into no message is every worker's business."""
    message: list[bytes] = []
    size = 2
    for word in words:
        said = _encode(word)
        if len(said) > LONGEST - 3:
            said = _encode(TO_ALL)
        if size + len(said) + 1 > LONGEST:
            yield f"[{b','.join(message).decode()}]"
            message, size = [], 2
        message.append(said)
        size += len(said) + 1
    yield f"[{b','.join(message).decode()}]"
