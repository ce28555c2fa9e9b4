"""The append-only side of a change: history, attempts, events. Written in the transaction that made them true."""

import json
from collections.abc import Iterable
from typing import Any

from everbeat.model.event import Event
from everbeat.model.state import Change
from everbeat.model.task import TaskError
from everbeat.store.sqlite.connection import Transaction

LONGEST_TEXT = 64 * 1024

ADD_HISTORY = """
INSERT INTO everbeat_history (task_id, at, actor, change, old_status, new_status, reason, attempt, fence, worker_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

ADD_ATTEMPT = """
INSERT INTO everbeat_attempts (task_id, attempt, fence, outcome, will_retry, billed, started_at, finished_at,
                               error_code, error_message, error, worker_id, hostname, pid)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, (SELECT hostname FROM everbeat_workers WHERE id = ?), ?)"""

ADD_EVENT = "INSERT INTO everbeat_events (at, name, task_id, worker_id, facts) VALUES (?, ?, ?, ?, ?)"


def add_history(tx: Transaction, *, task_id: str, actor: str, change: Change, old: str, new: str, reason: str | None,
                attempt: int, fence: int, worker_id: str | None) -> None:  # fmt: skip
    tx.run(
        ADD_HISTORY,
        (task_id, tx.now, text(actor), change.value, str(old), str(new), text(reason), attempt, fence, worker_id),
    )


def add_attempt(tx: Transaction, *, task_id: str, attempt: int, fence: int, will_retry: bool, billed: bool,
                started_at: int | None, error: TaskError, worker_id: str | None, pid: int | None) -> None:  # fmt: skip
    code, message, more = stored_error(error)
    tx.run(
        ADD_ATTEMPT,
        (task_id, attempt, fence, code, int(will_retry), int(billed), started_at, tx.now, code, message, more,
         worker_id, worker_id, pid),
    )  # fmt: skip


def add_events(tx: Transaction, events: Iterable[Event]) -> None:
    tx.many(ADD_EVENT, [(tx.now, e.name, e.task_id, e.worker_id, _facts(e.facts)) for e in events])


def stored_error(error: TaskError | None) -> tuple[str | None, str | None, str | None]:
    """Code, message and the rest, as the columns hold them."""
    if error is None:
        return None, None, None
    more = json.dumps({"type": error.exception_type, "traceback": _cut(error.traceback)})
    return text(error.code), text(error.message), more


def text(said: str | None) -> str | None:
    """What users' code says may be long, and may hold halves of characters that no database stores."""
    return None if said is None else str(_cut(said)).encode("utf-8", "backslashreplace").decode()


def _cut(said: str | None) -> str | None:
    """Both ends are kept: the cause stands in the first line of a message and in the last of a traceback."""
    if said is None or len(said) <= LONGEST_TEXT:
        return said
    half = LONGEST_TEXT // 2
    return f"{said[:half]}\n... {len(said) - 2 * half} characters cut ...\n{said[-half:]}"


def _facts(facts: dict[str, Any]) -> str:
    return json.dumps(facts, separators=(",", ":"), default=str)
