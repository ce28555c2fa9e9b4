"""Workers that die exactly where everything waits for them: at the last input of a join, and at the last node of a
nested workflow, whose end is that of the node it is."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pytest
from tests.crash.conftest import MakeYard, both_stores
from tests.crash.test_flows import audit
from tests.crash.trees import picture, task_of, until_at_rest
from tests.crash.yard import FAST, Yard

from everbeat import OnError, TaskStatus, Workflow, WorkflowStatus, crashpoint

ADVANCING = [point for point in crashpoint.POINTS if point.startswith("advance.")]
BEFORE = ("finish.received", *ADVANCING, "advance.written,flush.before_commit")
AFTER = ("advance.written,flush.after_commit", "finish.after_commit")
"""Of the commit that ends the last one. A flush may as well be one that only looks for tasks; one that advances a
workflow is not."""
POINTS = (*BEFORE, *AFTER)
FEW = 2
"""Of the points, taken by each case unless all are wanted: `make stable`."""
ALL_WANTED = "EVERBEAT_ALL_POINTS" in os.environ
CALM = "calm"
"""The queue of the last node where nobody dies."""

W = WorkflowStatus


class Build(Protocol):
    def __call__(self, yard: Yard, queue: str, last: str, on_error: OnError) -> Workflow: ...


def join_of(width: int) -> Build:
    def join(yard: Yard, queue: str, last: str, on_error: OnError) -> Workflow:
        task, flow = yard.app.tasks, Workflow("join", on_error=on_error)
        inputs = [flow.add(task["quick_again"]) for _ in range(width - 1)]
        inputs.append(flow.add(task[last].options(queue=queue)).named("last"))
        flow.add(task["joins_again"], *inputs).named("join")
        return flow

    return join


def nested(yard: Yard, queue: str, last: str, on_error: OnError) -> Workflow:
    task = yard.app.tasks
    inner, outer = Workflow("inner", on_error=on_error), Workflow("outer", on_error=on_error)
    inner.add(task[last].options(queue=queue), after=inner.add(task["quick_again"])).named("last")
    outer.add(task["joins_again"], outer.add(inner).named("inner")).named("join")
    return outer


@dataclass(frozen=True)
class Case:
    """A workflow, and how it ends if nobody dies. What is paused by an error is resumed each time it rests."""

    build: Build
    ends: tuple[WorkflowStatus, ...] = (W.COMPLETED,)
    last: str = "quick_again"
    on_error: OnError = OnError.FAIL
    few: int = FEW

    def flow(self, yard: Yard, queue: str) -> Workflow:
        return self.build(yard, queue, self.last, self.on_error)


def failing(build: Build, on_error: OnError, *ends: WorkflowStatus) -> Case:
    return Case(build, ends, "fails_at_once", on_error)


CASES = {
    "wide": Case(join_of(1000), few=1),
    "join": Case(join_of(10)),
    "join, fail": failing(join_of(10), OnError.FAIL, W.FAILED),
    "join, pause": failing(join_of(10), OnError.PAUSE, W.PAUSED, W.FAILED),
    "join, continue": failing(join_of(10), OnError.CONTINUE, W.COMPLETED),
    "nested": Case(nested),
    "nested, fail": failing(nested, OnError.FAIL, W.FAILED),
    "nested, pause": failing(nested, OnError.PAUSE, W.RUNNING, W.PAUSED, W.FAILED),
    "nested, continue": failing(nested, OnError.CONTINUE, W.COMPLETED),
}


def points_of(name: str) -> Sequence[str]:
    if ALL_WANTED:
        return POINTS
    first = list(CASES).index(name)
    return [POINTS[(first + 3 * step) % len(POINTS)] for step in range(CASES[name].few)]


@both_stores
@pytest.mark.parametrize("name", CASES)
def test_a_worker_that_dies_at_the_last_node_that_others_wait_for_changes_nothing_in_the_end(
    make_yard: MakeYard, name: str
) -> None:
    """Only the last node is left when the one that dies is started. Each has a workflow of its own."""
    case, yard = CASES[name], make_yard(**FAST)
    calm = case.flow(yard, CALM).start(yard.app)
    doomed = {point: case.flow(yard, point.replace(",", ".")).start(yard.app) for point in points_of(name)}
    yard.store.set_paused(CALM, is_paused=True, actor="test")
    healthy = yard.worker("--queues", f"default,{CALM}")
    until_at_rest(yard, "default")
    yard.store.set_paused(CALM, is_paused=False, actor="test")
    until_at_rest(yard, "default", CALM)
    assert healthy.stop() == 0

    for point, run in doomed.items():
        worker = yard.worker("--queues", point.replace(",", "."), crash_at=point, processes=1, ready=False)
        assert worker.ended() == -9, worker.said()
        last = task_of(yard, run, "last")
        assert (yard.status(last) is not TaskStatus.RUNNING) == (point in AFTER)
        assert len(yard.starts(last)) == 1
        recovery = yard.command("queue", "recover", "--db", yard.location)
        assert recovery.ended() == 0, recovery.said()

    yard.worker()

    for status in case.ends:
        until_at_rest(yard)
        assert [run.status() for run in (calm, *doomed.values())] == [status] * (1 + len(doomed))
        assert [point for point, run in doomed.items() if picture(yard, run) != picture(yard, calm)] == []
        if status is not case.ends[-1]:
            assert all(run.resume() for run in (calm, *doomed.values()))
    stored = [task_of(yard, run, "last") for point, run in doomed.items() if point in AFTER]
    assert [len(yard.starts(last)) for last in stored] == [1] * len(stored)
    audit(yard)
