"""Workflows through real workers that are killed: they end as without the accident, and what was finished is not run
again."""

from collections import Counter
from collections.abc import Callable

import pytest
from tests.crash.conftest import MakeYard, both_stores
from tests.crash.yard import FAST, PATIENCE, Yard

from everbeat import NodeStatus, OnError, Workflow, WorkflowHandle, WorkflowStatus

POINTS = ("flush.before_commit:2", "flush.after_commit:2", "claim.after_commit:1", "start.sent:1", "finish.received",
          "finish.received:2", "finish.after_commit", "finish.after_commit:2")  # fmt: skip
"""Of the completion of a node, and of the start of what follows from it."""

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


@pytest.mark.parametrize("crash_at", POINTS)
def test_a_worker_killed_while_a_node_completes_changes_nothing_in_the_end(make_yard: MakeYard, crash_at: str) -> None:
    yard = make_yard(**FAST)
    run = diamond(yard).start(yard.app)
    doomed = yard.worker(crash_at=crash_at, ready=False)
    assert doomed.ended() == -9, doomed.said()

    yard.worker()

    assert until_over(yard, run) == "COMPLETED"
    assert set(states(run).values()) == {N.COMPLETED}
    audit(yard)


@pytest.mark.parametrize("build", [wide, nested])
@pytest.mark.parametrize("crash_at", ["finish.received:4", "finish.after_commit:4"])
def test_the_same_in_a_wide_join_and_in_nested_workflows(
    make_yard: MakeYard, build: Callable[[Yard], Workflow], crash_at: str
) -> None:
    yard = make_yard(**FAST)
    run = build(yard).start(yard.app)
    doomed = yard.worker(crash_at=crash_at, ready=False)
    assert doomed.ended() == -9, doomed.said()

    yard.worker()

    assert until_over(yard, run) == "COMPLETED"
    audit(yard)


@pytest.mark.parametrize(
    ("on_error", "status"), [(OnError.FAIL, "FAILED"), (OnError.PAUSE, "PAUSED"), (OnError.CONTINUE, "COMPLETED")]
)
def test_an_error_means_the_same_whether_or_not_its_worker_dies_of_it(
    make_yard: MakeYard, on_error: OnError, status: str
) -> None:
    yard = make_yard(**FAST)
    run = diamond(yard, on_error, side="fails_always").start(yard.app)
    doomed = yard.worker(crash_at="finish.after_commit:1", ready=False)
    assert doomed.ended() == -9, doomed.said()

    yard.worker()

    assert until_over(yard, run, WorkflowStatus.PAUSED) == status
    yard.until(lambda: states(run)["left"] is N.COMPLETED or status == "PAUSED", "the other side has ended")
    assert (states(run)["right"], states(run)["last"]) == (N.FAILED, N.SKIPPED)
    assert run.info().error_node == "right"


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
