"""The append-only side of a change: history, attempts, events. Written in the transaction that made them true."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from everbeat.decide.measure import totals_of
from everbeat.model.event import Event
from everbeat.model.state import Change, TaskStatus, target
from everbeat.model.task import TaskError
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs import totals

LONGEST_TEXT = 64 * 1024

StoredError = tuple[str | None, str | None, str | None]
"""Code, message and the rest, as the columns hold them."""

_to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode

ADD_HISTORY = """
INSERT INTO everbeat_history (task_id, at, actor, change, old_status, new_status, reason, attempt, fence, worker_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

ADD_ATTEMPT = """
INSERT INTO everbeat_attempts (task_id, attempt, fence, outcome, will_retry, billed, started_at, finished_at,
                               error_code, error_message, error, worker_id, hostname, pid)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT hostname FROM everbeat_workers WHERE id = ?), ?)"""

# By whatever way an event is written, it waits for those who had subscribed by then. (A trigger says the same, and
# costs more than the row itself.)
WANTED = "CASE WHEN EXISTS (SELECT 1 FROM everbeat_subscriptions WHERE event IN ({name}, '*')) THEN 1 ELSE 0 END"

ADD_EVENT = f"""
INSERT INTO everbeat_events (at, name, task_id, worker_id, facts, wanted)
VALUES (:at, :name, :task_id, :worker_id, :facts, {WANTED.format(name=":name")})"""

# The primary key, backwards.
NEWEST_EVENTS = "SELECT name, task_id, worker_id, facts FROM everbeat_events ORDER BY id DESC LIMIT 1000"


@dataclass(slots=True)
class Records:
    """What a transaction adds to the records, gathered and then written together: a batch of ten thousand recoveries
    writes thirty thousand of them."""

    tx: Transaction
    _history: list[Row] = field(default_factory=list)
    _attempts: list[Row] = field(default_factory=list)
    _events: list[Event] = field(default_factory=list)

    def history(self, *, task_id: str, actor: str, change: Change, reason: str | None, attempt: int, fence: int,
                old: str = TaskStatus.PENDING, worker_id: str | None = None) -> None:  # fmt: skip
        self._history.append(
            (task_id, self.tx.now, text(actor), change.value, str(old), target(change).value, text(reason), attempt,
             fence, worker_id)
        )  # fmt: skip

    def attempt(self, *, task_id: str, attempt: int, fence: int, will_retry: bool, billed: bool, started_at: int | None,
                error: StoredError, worker_id: str | None, pid: int | None) -> None:  # fmt: skip
        code, message, more = error
        self._attempts.append(
            (task_id, attempt, fence, code, int(will_retry), int(billed), started_at, self.tx.now, code, message, more,
             worker_id, worker_id, pid)
        )  # fmt: skip

    def event(self, event: Event) -> None:
        self._events.append(event)

    def write(self) -> None:
        self.tx.soon(ADD_HISTORY, self._history)
        self.tx.soon(ADD_ATTEMPT, self._attempts)
        add_events(self.tx, self._events)


def add_events(tx: Transaction, events: Collection[Event]) -> None:
    if events:
        tx.soon(ADD_EVENT, [event_row(tx.now, one) for one in events])
        tx.events += events
        totals.add(tx, totals_of(events))


def stored_already(tx: Transaction, events: Collection[Event]) -> list[Event]:
    """Those of them that are among the newest that were written: a flush brought them before."""
    newest = set(tx.all(NEWEST_EVENTS))
    return [one for one in events if (one.name, one.task_id, one.worker_id, _to_json(one.facts)) in newest]


def event_row(at: int, one: Event) -> dict[str, object]:
    return {"at": at, "name": one.name, "task_id": one.task_id, "worker_id": one.worker_id,
            "facts": _to_json(one.facts)}  # fmt: skip


def stored_error(error: TaskError | None) -> StoredError:
    if error is None:
        return None, None, None
    more = None
    if error.exception_type is not None or error.traceback is not None:
        more = _to_json({"type": error.exception_type, "traceback": _cut(error.traceback)})
    return text(error.code), text(error.message), more


def text(said: str | None) -> str | None:
    """What users' code says may be long, and may hold halves of characters that no database stores, or a NUL, which
    PostgreSQL does not store."""
    if said is None or (said.isascii() and len(said) <= LONGEST_TEXT and "\0" not in said):
        return said
    return str(_cut(said)).replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _cut(said: str | None) -> str | None:
    """Both ends are kept: the cause stands in the first line of a message and in the last of a traceback."""
    if said is None or len(said) <= LONGEST_TEXT:
        return said
    half = LONGEST_TEXT // 2
    return f"{said[:half]}\n... {len(said) - 2 * half} characters cut ...\n{said[-half:]}"
