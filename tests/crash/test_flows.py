"""Workflows through real workers that are killed: they end as without the accident, and what was finished is not run
again."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from tests.crash.conftest import MakeYard, both_stores
from tests.crash.yard import FAST, PATIENCE, Yard

from everbeat import NodeStatus, OnError, Workflow, WorkflowHandle, WorkflowStatus, crashpoint

POINTS = ("finish.received:1", "finish.after_commit:1", "flush.before_commit:3", "flush.after_commit:2", "start.sent:1",
          "claim.after_commit:1", "finish.received", "finish.after_commit:2", "flush.before_commit:4")  # fmt: skip
"""Of the completion of a node, and of the start of what follows from it. (N: when it is passed for so many times.)"""
FEW = 3
"""Of the points, taken by each case unless all are wanted: `make stable`."""
ALL_WANTED = "EVERBEAT_ALL_POINTS" in os.environ

N = NodeStatus


def diamond(yard: Yard, on_error: OnError = OnError.FAIL, side: str = "joins_again") -> Workflow:
    task = yard.app.tasks
    flow = Workflow("diamond", on_error=on_error)
    first = flow.add(task["joins_again"]).named("first")
    sides = [flow.add(task["joins_again"], first).named("left")]
    sides.append(flow.add(task[side], *([first] if side == "joins_again" else []), after=[first]).named("right"))
    flow.add(task["joins_again"], *sides).named("last")
    return flow


def wide(yard: Yard) -> Workflow:
    flow = Workflow("wide")
    flow.add(yard.app.tasks["joins_again"], *[flow.add(yard.app.tasks["quick_again"]) for _ in range(1000)])
    return flow


def nested(yard: Yard) -> Workflow:
    inner, outer = diamond(yard), Workflow("outer")
    first = outer.add(inner)
    outer.add(yard.app.tasks["joins_again"], first, outer.add(inner)).named("last")
    return outer


def until_over(yard: Yard, run: WorkflowHandle, *also: WorkflowStatus) -> WorkflowStatus:
    return yard.until(lambda: (now := run.status()) in (*also, "COMPLETED", "FAILED") and now, "the workflow has ended")


def states(run: WorkflowHandle) -> dict[str, NodeStatus]:
    return {node.name: node.status for node in run.nodes()}


def audit(yard: Yard) -> None:
    """Every run but those whose process or worker was killed under them is the only one of its node."""
    ids = [task.id for task in yard.tasks()]
    yard.audit(ids)
    starts = Counter(line.task_id for line in yard.ledger() if line.word == "start")
    lost = Counter(task_id for (task_id,) in yard.query("SELECT task_id FROM everbeat_attempts"))
    assert all(starts[task_id] <= 1 + lost[task_id] for task_id in ids)
    assert yard.app.get_broker().sync.recover_stuck_workflows() == 0


@dataclass(frozen=True)
class Case:
    """A workflow, and how it ends if nobody dies."""

    build: Callable[[Yard], Workflow]
    status: str = "COMPLETED"
    failed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    one_run: bool = False
    """It is so wide that it lasts for all the deaths."""

    def end_of(self, node: str) -> NodeStatus:
        return N.FAILED if node in self.failed else N.SKIPPED if node in self.skipped else N.COMPLETED


def failing(on_error: OnError, status: str) -> Case:
    return Case(lambda yard: diamond(yard, on_error, side="fails_always"), status, ("right",), ("last",))


CASES = {
    "diamond": Case(diamond),
    "nested": Case(nested),
    "wide": Case(wide, one_run=True),
    "fail": failing(OnError.FAIL, "FAILED"),
    "pause": failing(OnError.PAUSE, "FAILED"),
    "continue": failing(OnError.CONTINUE, "COMPLETED"),
}


def points_of(name: str) -> Sequence[str]:
    if ALL_WANTED:
        return POINTS
    first = list(CASES).index(name)
    return [POINTS[(first + step * FEW) % len(POINTS)] for step in range(FEW)]


@both_stores
@pytest.mark.parametrize("name", CASES)
def test_workers_that_die_one_after_the_other_while_nodes_complete_change_nothing_in_the_end(
    make_yard: MakeYard, name: str
) -> None:
    """Each has a workflow of its own, and what the others left behind."""
    case, yard = CASES[name], make_yard(**FAST)
    runs: list[WorkflowHandle] = []
    for crash_at in points_of(name):
        if not (runs and case.one_run):
            runs.append(case.build(yard).start(yard.app))
        doomed = yard.worker(crash_at=crash_at, ready=False)
        assert doomed.ended() == -9, doomed.said()

    yard.worker()

    for run in runs:
        if until_over(yard, run, WorkflowStatus.PAUSED) is WorkflowStatus.PAUSED:
            assert run.resume()
        assert until_over(yard, run) == case.status
        assert {node: status for node, status in states(run).items() if status is not case.end_of(node)} == {}
        assert run.info().error_node == (case.failed[0] if case.failed else None)
    audit(yard)


@both_stores
def test_the_result_of_a_workflow_waits_for_it_through_the_death_of_a_worker(yard: Yard) -> None:
    task = yard.app.tasks
    flow = Workflow("mapped")
    flow.add(task["joins_again"], flow.map(task["joins_again"], over=flow.add(task["lists"], 20)))
    run = flow.start(yard.app)
    yard.worker(crash_at="finish.received:3", ready=False).ended()
    heir = yard.worker()

    if run.status() is not WorkflowStatus.FAILED:  # `lists` runs once: it may have been the one that died
        assert run.result(timeout=PATIENCE) > 0
    assert heir.stop() == 0


@both_stores
@pytest.mark.parametrize("crash_at", [point for point in crashpoint.POINTS if point.startswith("advance.")])
def test_a_worker_killed_in_the_transaction_that_advances_changes_nothing_in_the_end(
    make_yard: MakeYard, crash_at: str
) -> None:
    yard = make_yard(**FAST)
    run = diamond(yard).start(yard.app)
    doomed = yard.worker(crash_at=crash_at, ready=False)
    assert doomed.ended() == -9, doomed.said()

    yard.worker()

    assert until_over(yard, run) == "COMPLETED"
    audit(yard)
