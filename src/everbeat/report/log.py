"""Every log line of a worker. Code announces facts; here alone they become words.

A line is one event: its name in the past tense, then its facts as fields. No argument values at INFO or above.
"""

import json
import logging
from typing import Any

from everbeat.errors import StoreUnavailable
from everbeat.model.recovery import RecoveryReport

LOGGER = logging.getLogger("everbeat")


class Reporter:
    """Says what a worker does. Complaints about an unreachable store are said once until it has returned."""

    def __init__(self) -> None:
        self._unavailable: set[str] = set()

    def say(self, event: str, **facts: Any) -> None:
        LOGGER.info(line(event, facts), extra={"event": event, "facts": facts})

    def warn(self, event: str, **facts: Any) -> None:
        LOGGER.warning(line(event, facts), extra={"event": event, "facts": facts})

    def store_unavailable(self, loop: str, error: StoreUnavailable) -> None:
        if loop not in self._unavailable:
            self._unavailable.add(loop)
            self.warn("store.unavailable", loop=loop, error=str(error))

    def store_returned(self) -> None:
        if self._unavailable:
            self._unavailable.clear()
            self.say("store.returned")

    def store_blocked(self, by: str) -> None:
        key = f"blocked {by}"
        if key not in self._unavailable:
            self._unavailable.add(key)
            self.warn("store.blocked", by=by)

    def loop_failed(self, loop: str, error: Exception) -> None:
        LOGGER.error(line("loop.failed", {"loop": loop, "error": str(error)}), exc_info=error)

    def recovered(self, report: RecoveryReport) -> None:
        for worker in report.dead_workers:
            self.warn("worker.dead", worker=worker.worker_id, tasks=len(worker.orphaned_tasks))
        for task in report.recovered_tasks:
            facts = {
                "task": task.task_id, "action": task.action, "attempt": task.attempt_count,
                "worker": task.previous_worker_id, "reason": task.reason or task.error,
            }  # fmt: skip
            self.warn("task.recovered" if task.success else "task.unrecoverable", **facts)


def line(event: str, facts: dict[str, Any]) -> str:
    return " ".join([event, *(f"{name}={_shown(value)}" for name, value in facts.items() if value is not None)])


def _shown(value: Any) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "\n\t=') else text


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}",
            "level": record.levelname,
            "logger": record.name,
            "event": getattr(record, "event", None),
            **getattr(record, "facts", {}),
        }
        if said["event"] is None:
            said["message"] = record.getMessage()
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in said.items() if value is not None}, default=str)


def set_up(*, level: str, style: str) -> None:
    """A handler on stderr, only if the root logger has none."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
        handler.setFormatter(JsonFormatter() if style == "json" else text)
        root.addHandler(handler)
    LOGGER.setLevel(level.upper())
