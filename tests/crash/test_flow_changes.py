"""Whoever changes or mends a workflow is killed while doing it: all of the tree is changed, or nothing, and to do it
again ends well."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.crash.conftest import MakeYard, both_stores
from tests.crash.test_flows import audit
from tests.crash.trees import nodes, picture, task_of, until_at_rest
from tests.crash.yard import FAST, Running, Yard

from everbeat import NodeStatus, Workflow, WorkflowHandle, WorkflowStatus

N, W = NodeStatus, WorkflowStatus

ADVANCING = "advance.written"


def tree(yard: Yard, task_name: str, gate: str) -> Workflow:
    """Two nodes stand at the gate, one of them nested; others wait for each."""
    task = yard.app.tasks
    inner, outer = Workflow("inner"), Workflow("outer")
    inner.add(task["joins_again"], inner.add(task[task_name], gate).named("inside")).named("last")
    side = outer.add(task[task_name], gate).named("side")
    outer.add(task["joins_again"], side, outer.add(inner).named("inner")).named("join")
    return outer


def until_at_the_gate(yard: Yard, run: WorkflowHandle) -> None:
    for node in ("side", "inside"):
        yard.until_started(task_of(yard, run, node))


def stop_before_the_rest(yard: Yard, run: WorkflowHandle) -> None:
    """Paused, and what ran has ended."""
    until_at_the_gate(yard, run)
    assert run.pause()
    yard.open(run.id)
    yard.until(lambda: [nodes(yard, run)[node] for node in ("side", "inside")] == [N.COMPLETED] * 2, "both have ended")


def fail_at_the_gate(yard: Yard, run: WorkflowHandle) -> None:
    yard.until(lambda: run.status() is W.FAILED, "it has failed")
    yard.open(run.id)


def go_on(yard: Yard, run: WorkflowHandle) -> None:
    yard.open(run.id)
    yard.until(lambda: [nodes(yard, run)[node] for node in ("side", "inside")] == [N.COMPLETED] * 2, "both have ended")
    assert {nodes(yard, run)[node] for node in ("last", "join")} <= {N.PENDING, N.READY}
    assert run.resume()


@dataclass(frozen=True)
class Change:
    """What is asked of a workflow, and how it ends."""

    make: Callable[[WorkflowHandle], bool]
    prepare: Callable[[Yard, WorkflowHandle], None]
    end: WorkflowStatus
    at_the_gate: str = "gated_again"
    also_at: tuple[str, ...] = (ADVANCING,)
    afterwards: Callable[[Yard, WorkflowHandle], None] = lambda yard, run: None

    @property
    def points(self) -> tuple[str, ...]:
        return ("change_workflow.before_commit", "change_workflow.after_commit", *self.also_at)


CHANGES = {
    "pause": Change(WorkflowHandle.pause, until_at_the_gate, W.COMPLETED, also_at=(), afterwards=go_on),
    "resume": Change(WorkflowHandle.resume, stop_before_the_rest, W.COMPLETED),
    "cancel": Change(WorkflowHandle.cancel, until_at_the_gate, W.CANCELLED, at_the_gate="heeds"),
    "retry": Change(WorkflowHandle.retry_failed, fail_at_the_gate, W.COMPLETED, at_the_gate="needs"),
}


@both_stores
@pytest.mark.parametrize("word", CHANGES)
def test_a_process_killed_while_it_changes_a_workflow_has_changed_all_of_it_or_nothing(
    make_yard: MakeYard, word: str
) -> None:
    """A worker is at work all the time. Nobody rings for it after the commit, if who would have is dead."""
    change, yard = CHANGES[word], make_yard(**FAST)
    runs = {name: tree(yard, change.at_the_gate, name).start(yard.app, id=name) for name in ("calm", *change.points)}
    worker = yard.worker(processes=2 * len(runs))
    for run in runs.values():
        change.prepare(yard, run)
    calm = runs.pop("calm")
    assert change.make(calm)

    for point, run in runs.items():
        before = picture(yard, run)
        doomed = yard.command("workflow", word, run.id, "--db", yard.location, crash_at=point)
        assert doomed.ended() == -9, doomed.said()
        is_stored = point == "change_workflow.after_commit"
        assert is_stored or picture(yard, run) == before
        assert change.make(run) is not is_stored
        yard.until(lambda run=run: picture(yard, run) == picture(yard, calm), "it is as the other one")

    for run in (calm, *runs.values()):
        change.afterwards(yard, run)
    until_at_rest(yard)
    assert {run.status() for run in (calm, *runs.values())} == {change.end}
    assert [point for point, run in runs.items() if picture(yard, run) != picture(yard, calm)] == []
    audit(yard)
    assert worker.stop() == 0


LATER = "later"
"""The queue of the node that is to start when the tree is torn."""
TEARING = (
    "UPDATE everbeat_workflow_tasks SET status = 'ENQUEUED', finished_at = NULL WHERE task_id = ?",
    "UPDATE everbeat_workflows SET status = 'RUNNING', nodes_left = 1, finished_at = NULL WHERE parent_id = ?",
    "UPDATE everbeat_workflow_tasks SET status = 'RUNNING', result = NULL, finished_at = NULL"
    " WHERE workflow_id = ? AND name = 'inner'",
    "UPDATE everbeat_workflows SET nodes_left = 2 WHERE id = ?",
    "UPDATE everbeat_workflow_tasks SET status = 'PENDING', deps_left = 1, deps_ok = 1, started_at = NULL"
    " WHERE workflow_id = ? AND name = 'join'",
    "DELETE FROM everbeat_tasks WHERE id = ?",
)
"""As if the result of the last node inside had been stored, and nothing of what follows from it."""


def late(yard: Yard) -> Workflow:
    task = yard.app.tasks
    inner, outer = Workflow("inner"), Workflow("outer")
    inner.add(task["joins_again"], inner.add(task["quick_again"])).named("last")
    side = outer.add(task["quick_again"]).named("side")
    outer.add(task["joins_again"].options(queue=LATER), side, outer.add(inner).named("inner")).named("join")
    return outer


def tear(yard: Yard, run: WorkflowHandle) -> None:
    last, join = task_of(yard, run, "last"), task_of(yard, run, "join")
    for statement, value in zip(TEARING, (last, run.id, run.id, run.id, run.id, join), strict=True):
        yard.change(statement, value)


@both_stores
@pytest.mark.parametrize("mender", ["worker", "command"])
def test_a_process_killed_while_it_mends_a_workflow_has_mended_all_of_it_or_nothing(
    make_yard: MakeYard, mender: str
) -> None:
    """What it was before somebody tore it is what it becomes."""
    yard, points = make_yard(**FAST), ("mend.before_commit", ADVANCING, "mend.after_commit")
    runs = {point: late(yard).start(yard.app) for point in points}
    healthy = yard.worker("--queues", "default")
    until_at_rest(yard, "default")
    assert healthy.stop() == 0

    for point, run in runs.items():
        whole = picture(yard, run)
        tear(yard, run)
        torn = picture(yard, run)
        if mender == "worker":
            doomed: Running = yard.worker(crash_at=point, ready=False)
        else:
            doomed = yard.command("queue", "recover", "--db", yard.location, crash_at=point)
        assert doomed.ended() == -9, doomed.said()
        is_stored = point == "mend.after_commit"
        assert picture(yard, run) == (whole if is_stored else torn)
        assert yard.app.get_broker().sync.recover_stuck_workflows() == (0 if is_stored else 1)
        assert picture(yard, run) == whole

    yard.worker()
    until_at_rest(yard)
    assert {run.status() for run in runs.values()} == {W.COMPLETED}
    audit(yard)
