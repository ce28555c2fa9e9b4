"""One of many processes that do at random what workers, reapers, senders and people do, all on one store.

    python -m tests.isolation.crowd URL NUMBER SEED SECONDS

Says what it was told on stdout, one JSON list per line: `["sent", id]`, `["claimed", id, fence]`,
`["completed", id, fence]` for a result that was accepted, `["started", id]` for a workflow, `["trouble", text]`.
"""

import itertools
import json
import random
import sys
import time
from collections.abc import Callable

from tests.flow_words import diamond
from tests.words import (
    a_room,
    a_task,
    carry_out,
    completed,
    failed,
    handed_back,
    register,
    retried,
)

from everbeat.config import AppConfig, broker_from_url
from everbeat.errors import StoreUnavailable
from everbeat.model.flow import WorkflowChange
from everbeat.model.order import Order
from everbeat.model.recovery import Adopted, Cause, Orphan, Settled, Verdict
from everbeat.model.state import Change
from everbeat.model.task import Claim
from everbeat.model.worker import QueueSetting
from everbeat.store.messages import Ending, Flush
from everbeat.store.open import open_store

LIMIT = QueueSetting(name="few", max_concurrency=3, paused=False)
KEYS = ("k", "l", "m")
MOST_HELD = 4
AGAIN = Verdict(change=Change.RECOVER, reason="its worker died")
CHANGES = (
    WorkflowChange.PAUSE, WorkflowChange.RESUME, WorkflowChange.RESUME, WorkflowChange.RETRY, WorkflowChange.CANCEL,
)  # fmt: skip
ORDERS = (Order.CANCEL, Order.REQUEUE, Order.RETRY, Order.FAIL)


def say(*words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")


class Member:
    def __init__(self, url: str, number: int, seed: int) -> None:
        self.store = open_store(AppConfig(broker=broker_from_url(url), eager=False))
        self.chance = random.Random(f"{seed}/{number}")
        self.number = number
        self.lives = itertools.count(1)
        self.tasks = itertools.count(1)
        self.known: list[str] = []
        self.held: list[Claim] = []
        self.flows: list[str] = []
        self.deeds: list[Callable[[], None]] = [
            self.send, self.work, self.work, self.work, self.command, self.bury, self.start, self.direct,
        ]  # fmt: skip
        self.live()

    def live(self) -> None:
        """Under a new name, as a worker that was declared dead; what it held is others'."""
        self.held = []
        self.me = register(self.store, f"p{self.number}-{next(self.lives)}", settings=(LIMIT,))

    def turn(self) -> None:
        try:
            self.chance.choice(self.deeds)()
        except StoreUnavailable as error:
            say("trouble", str(error))

    def send(self) -> None:
        tasks = []
        for _ in range(self.chance.randint(1, 4)):
            facts: dict[str, object] = {"queue": self.chance.choice(["few", "default"])}
            if self.chance.random() < 0.4:
                facts["exclusive_key"] = self.chance.choice(KEYS)
            if self.chance.random() < 0.3:
                facts["unique_key"] = self.chance.choice(KEYS)
            if self.chance.random() < 0.2:
                facts["delay_us"] = self.chance.randint(1, 200_000)
            tasks.append(a_task(id=f"t{self.number}-{next(self.tasks)}", **facts))
        for stored in self.store.enqueue(tasks):
            say("sent", stored.id)
            self.known.append(stored.id)

    def work(self) -> None:
        """One flush: settle some of what it holds, claim what fits."""
        ending = [claim for claim in self.held if self.chance.random() < 0.6]
        self.chance.shuffle(ending)
        endings = [Ending(claim=claim, verdict=self._verdict()) for claim in ending]
        room = a_room(MOST_HELD - len(self.held) + len(ending))
        flushed = self.store.flush(Flush(worker_id=self.me, endings=endings, room=room))
        for one, settlement in zip(endings, flushed.settlements, strict=True):
            is_result = one.verdict.change is Change.COMPLETE and isinstance(settlement, Settled | Adopted)
            if is_result:
                say("completed", one.claim.id, one.claim.fence)
        self.held = [claim for claim in self.held if claim not in ending] + flushed.claims
        for claim in flushed.claims:
            say("claimed", claim.id, claim.fence)
        if not flushed.alive:
            self.live()

    def _verdict(self) -> Verdict:
        return self.chance.choice([completed(str(self.number).encode()), retried(), failed(), handed_back()])

    def command(self) -> None:
        if self.known:
            some = self.chance.sample(self.known, min(len(self.known), self.chance.randint(1, 6)))
            carry_out(self.store, self.chance.choice(ORDERS), *some)

    def start(self) -> None:
        """A diamond, of which all workers know the tasks."""
        flow = diamond(id=f"f{self.number}-{len(self.flows) + 1}")
        assert self.store.start_workflow([flow]).created
        say("started", flow.id)
        self.flows.append(flow.id)

    def direct(self) -> None:
        """Pause, resume, cancel or retry one of its workflows."""
        if self.flows:
            self.store.change_workflow(self.chance.choice(CHANGES), self.chance.choice(self.flows), actor="me")

    def bury(self) -> None:
        """Declare somebody dead, perhaps itself, and recover what anybody dead has left."""
        others = [worker.id for worker in self.store.workers(alive_only=True)]
        if self.chance.random() < 0.3 and others:
            self.store.declare_dead(self.chance.choice(others), reason="by chance", cause="silence")
        found = self.store.orphans(limit=20)
        self.chance.shuffle(found)
        orphans = [Orphan(claim=claim, cause=Cause.LOST, evidence="gone", is_certain=True) for claim in found]
        self.store.recover([(orphan, AGAIN) for orphan in orphans])


def main(url: str, number: str, seed: str, seconds: str) -> None:
    member = Member(url, int(number), int(seed))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    give_up = time.monotonic() + float(seconds)
    while time.monotonic() < give_up:
        member.turn()


if __name__ == "__main__":
    main(*sys.argv[1:])
