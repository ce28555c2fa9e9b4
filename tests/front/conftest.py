"""What the tests of the public surface share: an application on a store in a temporary directory, a worker by hand."""

import itertools
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.words import a_worker

from everbeat import Everbeat
from everbeat.decide.room import Room
from everbeat.ids import full_name
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.model.task import Claim, Outcome, TaskError
from everbeat.store.messages import Ending, Flush


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Everbeat]:
    with Everbeat(f"sqlite:///{tmp_path}/front.db") as app:
        yield app


@pytest.fixture
def worker(app: Everbeat) -> "HandWorker":
    return HandWorker(app)


class HandWorker:
    """Runs tasks in this process, one at a time, through the real store: no loops, no time, no second process."""

    _numbers = itertools.count(1)

    def __init__(self, app: Everbeat) -> None:
        self.app = app
        self.id = f"hand-{next(self._numbers)}"
        app.store.register(a_worker(self.id, task_names=tuple(app.tasks)))

    def claim(self) -> Claim:
        room = Room(sync_names=frozenset(self.app.tasks), async_names=frozenset(), queues=None, slots={1: 0})
        (claim,) = self.app.store.flush(Flush(worker_id=self.id, room=room)).claims
        return claim

    def run_one(self) -> Claim:
        """Claim the next task, call its function, and store what came of it. A failure is final."""
        claim = self.claim()
        task = self.app.tasks[claim.name]
        args, kwargs = task.decode_args(claim.args)
        try:
            result = task.encode_result(task.function(*args, **kwargs))
        except ValueError as error:
            failure = TaskError(
                code="UNHANDLED_EXCEPTION",
                message=str(error),
                exception_type=full_name(type(error)),
                traceback="".join(traceback.format_exception(error)),
            )
            self.settle(claim, Verdict(change=Change.FAIL, error=failure))
        else:
            self.settle(claim, Verdict(change=Change.COMPLETE, result=result))
        return claim

    def settle(self, claim: Claim, verdict: Verdict) -> None:
        outcome = Outcome(result=verdict.result, error=verdict.error, began_at=1, ended_at=2)
        ending = Ending(claim=claim, verdict=verdict, outcome=outcome)
        self.app.store.flush(Flush(worker_id=self.id, endings=[ending]))
