"""The runner of a node is killed, and so is whoever recovers it, at each point of a recovery: the workflow ends as if
the first had been the only death. A node that may run once is failed by its recovery, which advances the workflow."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from tests.crash.conftest import MakeYard, both_stores
from tests.crash.test_flows import audit
from tests.crash.trees import nodes, picture, task_of, until_at_rest
from tests.crash.yard import FAST, Yard

from everbeat import NodeStatus, OnError, TaskStatus, Workflow, WorkflowStatus, crashpoint

POINTS = [point for point in crashpoint.POINTS if point.startswith(("declare_dead.", "recover."))]
GATE = "open"

N, W = NodeStatus, WorkflowStatus


def diamond(yard: Yard, lost: str, on_error: OnError) -> Workflow:
    task, flow = yard.app.tasks, Workflow("diamond", on_error=on_error)
    first = flow.add(task["quick_again"]).named("first")
    side = flow.add(task["joins_again"], first).named("side")
    flow.add(task["joins_again"], side, flow.add(task[lost], GATE, after=first).named("lost")).named("last")
    return flow


def nested(yard: Yard, lost: str, on_error: OnError) -> Workflow:
    outer = Workflow("outer", on_error=on_error)
    outer.add(yard.app.tasks["joins_again"], outer.add(diamond(yard, lost, on_error)).named("inner")).named("after")
    return outer


@dataclass(frozen=True)
class Case:
    """What becomes of a workflow whose node was lost. What is paused by an error is resumed each time it rests."""

    ends: tuple[WorkflowStatus, ...]
    nodes: Mapping[str, NodeStatus]
    lost: str = "gated"
    on_error: OnError = OnError.FAIL
    is_nested: bool = False

    def flow(self, yard: Yard) -> Workflow:
        return (nested if self.is_nested else diamond)(yard, self.lost, self.on_error)


WHOLE = {"first": N.COMPLETED, "side": N.COMPLETED, "lost": N.COMPLETED, "last": N.COMPLETED}
FAILED = WHOLE | {"lost": N.FAILED, "last": N.SKIPPED}
CASES = {
    "again": Case((W.COMPLETED,), WHOLE, lost="gated_again"),
    "again, nested": Case(
        (W.COMPLETED,), WHOLE | {"inner": N.COMPLETED, "after": N.COMPLETED}, lost="gated_again", is_nested=True
    ),
    "fail": Case((W.FAILED,), FAILED),
    "pause": Case((W.PAUSED, W.FAILED), FAILED, on_error=OnError.PAUSE),
    "continue": Case((W.COMPLETED,), FAILED, on_error=OnError.CONTINUE),
    "fail, nested": Case((W.FAILED,), FAILED | {"inner": N.FAILED, "after": N.SKIPPED}, is_nested=True),
}


@both_stores
@pytest.mark.parametrize("name", CASES)
def test_those_who_recover_a_node_die_one_after_the_other_and_its_workflow_ends_as_after_one_death(
    make_yard: MakeYard, name: str
) -> None:
    """What one leaves the next finds: before a commit nothing, after it all of it."""
    case, yard = CASES[name], make_yard(**FAST)
    run = case.flow(yard).start(yard.app)
    runner = yard.worker()
    lost = task_of(yard, run, "lost")
    yard.until_started(lost)
    until_at_rest(yard, but=lost)
    runner.kill()
    yard.open(GATE)
    torn = picture(yard, run)

    for point in POINTS:
        doomed = yard.worker(crash_at=point, ready=False)
        assert doomed.ended() == -9, doomed.said()
        assert (picture(yard, run) != torn) == (point == "recover.after_commit")
    recovered = yard.status(lost)
    yard.worker()

    assert recovered is (TaskStatus.PENDING if case.lost == "gated_again" else TaskStatus.FAILED)
    for status in case.ends:
        until_at_rest(yard)
        assert run.status() is status
        assert status is case.ends[-1] or run.resume()
    assert nodes(yard, run) == case.nodes
    assert len(yard.starts(lost)) == (2 if case.lost == "gated_again" else 1)
    assert yard.full(lost).error_code == (None if case.lost == "gated_again" else "WORKER_CRASHED")
    audit(yard)
