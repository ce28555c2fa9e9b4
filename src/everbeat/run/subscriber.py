"""The process in which an application's subscribers run: `app.on(event, function)`.

It is given one event at a time and says how that went. A subscriber that raises, hangs or dies harms no task: no task
is here. Of several subscribers to one event those that were told are not told again while this process lives; after
its end they may be, because nobody knows how far it came.
"""

import inspect
import json
import os
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everbeat.model.event import EVERY, EventInfo
from everbeat.model.task import Outcome, TaskError
from everbeat.report import log
from everbeat.run.failure import UNHANDLED_EXCEPTION, error_of
from everbeat.run.speech import Mouth
from everbeat.run.tickets import Intake
from everbeat.run.wire import GONE, Job
from everbeat.store.moments import moment

if TYPE_CHECKING:
    from asyncio import Runner

Subscribers = Mapping[str, Sequence[Callable[[EventInfo], Any]]]


class SubscriberChild:
    def __init__(self, subscribers: Subscribers, intake: Intake, mouth: Mouth) -> None:
        self._subscribers = subscribers
        self._intake = intake
        self._mouth = mouth
        self._pid = os.getpid()
        self._runner: Runner | None = None
        self._told: dict[int, set[int]] = {}
        """Which functions succeeded, for events of which another one failed."""

    def serve(self) -> None:
        try:
            self._mouth.say([])
            for job in self._intake.jobs():
                self._mouth.say([(job.entry, job.seq, job.fence, self._tell(job))])
        except GONE:
            return

    def wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        from asyncio import Runner  # lazily: a supervisor that sends events here has no loop

        self._runner = self._runner or Runner()
        return self._runner.run(coroutine)

    def _tell(self, job: Job) -> Outcome:
        began_at = time.time_ns() // 1000
        event = as_event(job.args)
        functions = [*self._subscribers.get(event.name, ()), *self._subscribers.get(EVERY, ())]
        told = self._told.setdefault(event.id, set())
        error = None if functions else TaskError(code="UNKNOWN_EVENT", message="nobody subscribes to it here any more")
        for number, function in enumerate(functions):
            if number not in told:
                failure = self._call(function, event)
                if failure is None:
                    told.add(number)
                error = error or failure
        if error is None:
            del self._told[event.id]
        return Outcome(result=None, error=error, began_at=began_at, ended_at=time.time_ns() // 1000)

    def _call(self, function: Callable[[EventInfo], Any], event: EventInfo) -> TaskError | None:
        try:
            done = function(event)
            if inspect.iscoroutine(done):
                self.wait_for(done)
        except BaseException as exception:  # noqa: BLE001 - user code
            log.subscriber_failed(event.name, event.id, "it raised", exception)
            return error_of(exception, UNHANDLED_EXCEPTION, __file__)
        finally:
            if os.getpid() != self._pid:
                os._exit(0)  # the code forked, and this is not the process that was given the event
        return None


def as_bytes(event: EventInfo) -> bytes:
    at = round(event.at.timestamp() * 1_000_000)
    said = [event.id, at, event.name, event.task_id, event.worker_id, event.facts]
    return json.dumps(said, default=str).encode()


def as_event(raw: bytes) -> EventInfo:
    event_id, at, name, task_id, worker_id, facts = json.loads(raw)
    return EventInfo(id=event_id, at=moment(at), name=name, task_id=task_id, worker_id=worker_id, facts=facts)
