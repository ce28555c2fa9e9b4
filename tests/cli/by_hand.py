"""Tasks and workers made by hand through the real store, and what a command left when it ended."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.words import a_worker

from everbeat.decide.room import Room
from everbeat.ids import new_id
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.model.task import Claim, NewTask, Outcome, TaskError, TaskKind
from everbeat.run.lockfile import this_host
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Ended]


def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)  # between two looks at another process


def send(store: Store, name: str = "shop.add", **given: Any) -> str:
    own = (given.pop("id", new_id()), given.pop("args", b"{}"), given.pop("unique_key", None))
    task = NewTask(*own[:2], TaskKind(name, **given), own[2])
    store.enqueue([task])
    return task.id


class HandWorker:
    """A worker without processes: claims and settles in this process."""

    def __init__(self, store: Store, name: str = "hand") -> None:
        self.store = store
        self.id = name
        store.register(a_worker(name, host=this_host(), task_names=()))

    def claim(self, name: str = "shop.add") -> Claim:
        room = Room(sync_names=frozenset({name}), async_names=frozenset(), queues=None, slots={1: 0})
        (claim,) = self.store.flush(Flush(worker_id=self.id, room=room)).claims
        return claim

    def complete(self, claim: Claim) -> None:
        self._settle(claim, Verdict(change=Change.COMPLETE, result=b"3"))

    def fail(self, claim: Claim, message: str = "no more", *, code: str = "UNHANDLED_EXCEPTION") -> None:
        self._settle(claim, Verdict(change=Change.FAIL, error=TaskError(code=code, message=message), reason=message))

    def quarantine(self, claim: Claim) -> None:
        error = TaskError(code="WORKER_CRASHED", message="process 4711 killed by SIGSEGV")
        self._settle(
            claim, Verdict(change=Change.ABANDON, error=error, reason=error.message, crashes=3, quarantined=True)
        )

    def lose(self, claim: Claim) -> None:
        """Its process died, and it may run again."""
        error = TaskError(code="WORKER_CRASHED", message="process 4711 killed by SIGSEGV")
        self._settle(claim, Verdict(change=Change.RECOVER, error=error, reason=error.message, crashes=1))

    def _settle(self, claim: Claim, verdict: Verdict) -> None:
        outcome = Outcome(result=verdict.result, error=verdict.error, began_at=1, ended_at=2)
        ending = Ending(claim=claim, verdict=verdict, outcome=outcome)
        self.store.flush(Flush(worker_id=self.id, endings=[ending]))


def failed_task(store: Store, hand: HandWorker, **given: Any) -> str:
    task_id = send(store, **given)
    hand.fail(hand.claim(given.get("name", "shop.add")))
    return task_id
