"""The part of a SQL store that is looked at."""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime

from everbeat.errors import TaskNotFound
from everbeat.model.event import Event, EventInfo
from everbeat.model.task import Finished, LateOutcome, TaskInfo
from everbeat.store.messages import QueueCount, QueueInfo, TaskFilter
from everbeat.store.moments import moment
from everbeat.store.sql.base import Base
from everbeat.store.verbs import counting, looking, queueing, records


class Looking(Base):
    def now(self) -> datetime:
        with self.database.read() as tx:
            return moment(tx.now)

    def get(self, task_id: str, *, full: bool = True) -> TaskInfo | None:
        with self.database.read(steady=full) as tx:
            return looking.get(tx, task_id, full=full)

    def late_outcomes(self, task_id: str) -> list[LateOutcome]:
        with self.database.read() as tx:
            return looking.late_outcomes(tx, task_id)

    def finished(self, task_id: str) -> Finished | None:
        with self.database.read() as tx:
            exists, end = looking.finished(tx, task_id)
        if not exists:
            raise TaskNotFound(task_id, where=self.location)
        return end

    def tasks(self, wanted: TaskFilter) -> list[TaskInfo]:
        with self.database.read() as tx:
            return looking.tasks(tx, wanted)

    def queues(self) -> list[QueueInfo]:
        with self.database.read() as tx:
            return queueing.queues(tx)

    def counts(self) -> list[QueueCount]:
        with self.database.read(steady=True) as tx:
            return counting.counts(tx)

    def later(self, queues: Collection[str] | None) -> int:
        with self.database.read() as tx:
            return counting.later(tx, queues)

    def events(self, *, after: int = 0, since: datetime | None = None, task_id: str | None = None,
               limit: int = 1000) -> list[EventInfo]:  # fmt: skip
        with self.database.read() as tx:
            return looking.events(tx, after=after, since=since, task_id=task_id, limit=limit)

    def hear_again(self, events: Sequence[Event]) -> list[Event]:
        with self.database.read() as tx:
            found = records.stored_already(tx, events)
        if found and self.database.when_told is not None:
            self.database.when_told(found)
        return found

    def on_events(self, hear: Callable[[Sequence[Event]], None]) -> None:
        self.database.when_told = hear

    def announce(self, events: Iterable[Event]) -> None:
        with self.database.write() as tx:
            records.add_events(tx, list(events))
