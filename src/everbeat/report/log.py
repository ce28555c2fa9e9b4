"""Every log line of a worker. Code announces facts; here alone they become words.

A line is one event: its name in the past tense, then its facts as fields, the same as in the table of events. It is
written by the process that made it true, after the commit. No argument values at INFO or above.

What can not be stored while it is true (the store is away) is said here at once, and stored when that is over.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everbeat.errors import StoreUnavailable
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.report import RecoveryReport
from everbeat.secrecy import without_passwords

LOGGER = logging.getLogger("everbeat")
TASK_FIELDS = ("task_id", "task_name", "attempt", "worker")
"""Attributes of a record that was made inside a task."""
MOST_LINES = 100
"""Of one kind in one transaction. Above it they are counted: a million recoveries are not a million lines."""
LONGEST_ERROR = 500
LEVELS = {
    event.WORKER_DEAD: logging.WARNING,
    event.WORKER_FENCED: logging.WARNING,
    event.TASK_RECOVERED: logging.WARNING,
    event.TASK_QUARANTINED: logging.ERROR,
    event.TASK_FAILED: logging.WARNING,
    event.WORKFLOW_FAILED: logging.WARNING,
    event.WORKFLOW_LOCKED: logging.WARNING,
    event.WORKFLOW_TORN: logging.ERROR,
    event.WORKFLOW_MENDED: logging.WARNING,
    event.WORKFLOW_STUCK: logging.ERROR,
    event.OUTCOME_REFUSED: logging.WARNING,
    event.ROW_REFUSED: logging.WARNING,
    event.FILES_LOST: logging.WARNING,
    event.CHILD_DIED: logging.WARNING,
    event.CHILD_KILLED: logging.WARNING,
    event.CHILD_UNRESPONSIVE: logging.WARNING,
    event.APP_FAILED: logging.ERROR,
    event.STORE_DEGRADED: logging.ERROR,
    event.STORE_REPAIRED: logging.WARNING,
    event.EVENT_UNDELIVERABLE: logging.ERROR,
}
"""INFO for the others."""
SAID_BEFORE = frozenset({event.STORE_BLOCKED, event.SPOOL_FULL})
"""Said when it began, stored when it was over."""


class Reporter:
    """Says what a worker does. Complaints about an unreachable store are said once until it has returned."""

    def __init__(self) -> None:
        self._unavailable: set[str] = set()
        self._blocked_by: str | None = None
        self._away_since: float | None = None

    @property
    def store_away_for(self) -> float:
        """Seconds since somebody complained about the store, if it has not been written since."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    def heard(self, events: Sequence[Event]) -> None:
        """A transaction announced these."""
        lines: Counter[str] = Counter()
        for one in events:
            lines[one.name] += 1
            if lines[one.name] <= MOST_LINES and one.name not in SAID_BEFORE:
                _log(LEVELS.get(one.name, logging.INFO), one.name, facts_of(one.task_id, one.worker_id, one.facts))
        for name, count in lines.items():
            if count > MOST_LINES:
                _log(LEVELS.get(name, logging.INFO), name, {"more": count - MOST_LINES})

    def say(self, event: str, **facts: Any) -> None:
        _log(logging.INFO, event, facts)

    def warn(self, event: str, **facts: Any) -> None:
        _log(logging.WARNING, event, facts)

    def store_unavailable(self, loop: str, error: StoreUnavailable) -> None:
        self._away_since = self._away_since or time.monotonic()
        if loop not in self._unavailable:
            self._unavailable.add(loop)
            self.warn("store.unavailable", loop=loop, error=str(error))

    def store_blocked(self, by: str) -> None:
        self._away_since = self._away_since or time.monotonic()
        if self._blocked_by != by:
            self._blocked_by = by
            self.warn(event.STORE_BLOCKED, by=by)

    def store_returned(self) -> list[Event]:
        """It was written. What there is to announce about the time before."""
        if self._away_since is None:
            return []
        seconds, by = round(self.store_away_for, 1), self._blocked_by
        self._unavailable.clear()
        self._away_since = self._blocked_by = None
        blocked = [Event(name=event.STORE_BLOCKED, facts={"by": by, "seconds": seconds})] if by else []
        return [*blocked, Event(name=event.STORE_RETURNED, facts={"away_for": seconds})]

    def loop_failed(self, loop: str, error: Exception) -> None:
        LOGGER.error(line("loop.failed", {"loop": loop, "error": str(error)}), exc_info=error)

    def recovered(self, report: RecoveryReport) -> None:
        """What was recovered has been announced; what could not be has nothing stored that would tell."""
        for task in report.recovered_tasks:
            if not task.success:
                facts = {"task": task.task_id, "worker": task.previous_worker_id, "reason": task.error or task.reason}
                self.warn("task.unrecoverable", **facts)


def subscriber_failed(name: str, event_id: int, how: str, error: BaseException | None = None) -> None:
    """It will be tried again; when that is given up, it is an event."""
    LOGGER.warning(line("subscriber.failed", {"event": name, "event_id": event_id, "reason": how}), exc_info=error)


def task_raised(facts: Mapping[str, Any], error: str | None, traceback: str | None) -> None:
    """Why a run failed, where it did: whoever reads the log should not have to ask the store. Not stored: what becomes
    of the task is another event."""
    _log(logging.WARNING, "task.raised", {**facts, "error": error and _first_line(error)}, more=traceback)


def facts_of(task_id: str | None, worker_id: str | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """An event as fields, in the order in which they are shown."""
    return {"task": task_id, "worker": worker_id, **facts}


def line(event: str, facts: Mapping[str, Any]) -> str:
    return " ".join([event, *(f"{name}={_shown(value)}" for name, value in facts.items() if value is not None)])


def _log(level: int, event: str, facts: Mapping[str, Any], *, more: str | None = None) -> None:
    """`more` has lines of its own. They are indented: none of them can be taken for another record."""
    if not LOGGER.isEnabledFor(level):
        return
    told = {name: without_passwords(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    lines = [line(event, told), *(f"  {_printable(text)}" for text in (more or "").splitlines())]
    extra = {"event": event, "facts": told if more is None else told | {"traceback": more}}
    LOGGER.log(level, "%s", "\n".join(lines), extra=extra)


def _first_line(text: str) -> str:
    first, _, rest = text.strip().partition("\n")
    return first[:LONGEST_ERROR] + (" ..." if rest or len(first) > LONGEST_ERROR else "")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _shown(value: Any) -> str:
    """In quotes if it could be taken for something else; and nothing of it can move or colour a terminal."""
    text = value if isinstance(value, str) else json.dumps(value, default=str) if _is_many(value) else str(value)
    if not text.isprintable():
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=') else text


def _is_many(value: Any) -> bool:
    return isinstance(value, list | tuple | dict)


# -- handlers ---------------------------------------------------------------------------------------------------------


class TextFormatter(logging.Formatter):
    """Time, level, words; and for records made inside a task which task that was."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of the method it replaces
        if record.name == LOGGER.name:  # which names the task among its facts
            return f"{record.asctime} {record.levelname} {record.message}"
        inside = {name: getattr(record, name) for name in TASK_FIELDS if getattr(record, name, None) is not None}
        said = f"{record.asctime} {record.levelname} {record.name}: {record.message}"
        return line(said, inside) if inside else said


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "event": getattr(record, "event", None),
            **{name: getattr(record, name, None) for name in TASK_FIELDS},
            **getattr(record, "facts", {}),
        }
        if said["event"] is None:
            said["message"] = record.getMessage()
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in said.items() if value is not None}, default=str)


def set_up(*, level: str, style: str, root_too: bool = False) -> None:
    """A handler on stderr, only if the root logger has none. `root_too`: then everybody's records pass from this level
    on; without it only ours do."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
        root.addHandler(handler)
        if root_too:
            root.setLevel(level.upper())
    LOGGER.setLevel(level.upper())


def mark_records(fields: Callable[[], Mapping[str, Any] | None]) -> None:
    """From now on each record of this process carries what `fields` says when it is made; None adds nothing.

    What somebody gave as `extra` stays. Things that do not work: a record factory, because `extra` with one of these
    names would then raise KeyError in the middle of a task; a filter, because it sees the records of one handler only.
    """
    handle = logging.Logger.handle

    def handle_marked(self: logging.Logger, record: logging.LogRecord) -> None:
        for name, value in (fields() or {}).items():
            record.__dict__.setdefault(name, value)
        handle(self, record)

    setattr(logging.Logger, "handle", handle_marked)  # noqa: B010 - replaces a method, for this process only
