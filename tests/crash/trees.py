"""Trees of workflows as the store has them, to be compared: one that had an accident with one that had none."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.crash.yard import Yard

from everbeat import NodeStatus, WorkflowHandle

TREE = """
SELECT w.name, w.status, w.nodes_left, w.error_node, w.error_code, n.name, n.status, n.error_code,
       n.deps_left, n.deps_ok, n.deps_failed, t.status, t.error_code, t.quarantined, t.waiting_for
  FROM everbeat_workflows w
  JOIN everbeat_workflow_tasks n ON n.workflow_id = w.id
  LEFT JOIN everbeat_tasks t ON t.id = n.task_id
 WHERE w.root_id = ? ORDER BY w.name, n.node"""
NODES = """
SELECT n.name, n.task_id, n.status FROM everbeat_workflows w JOIN everbeat_workflow_tasks n ON n.workflow_id = w.id
 WHERE w.root_id = ?"""
UNFINISHED = "SELECT id, queue FROM everbeat_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')"


def picture(yard: Yard, run: WorkflowHandle) -> Sequence[tuple[Any, ...]]:
    """All of it that is not a name of this one run alone, or a moment."""
    return yard.query(TREE, run.id)


def nodes(yard: Yard, run: WorkflowHandle) -> Mapping[str, NodeStatus]:
    """Also those that are nested."""
    return {name: NodeStatus(status) for name, _, status in yard.query(NODES, run.id)}


def task_of(yard: Yard, run: WorkflowHandle, node: str) -> str:
    """Its id. There may be no task yet."""
    return next(str(task_id) for name, task_id, _ in yard.query(NODES, run.id) if name == node)


def until_at_rest(yard: Yard, *queues: str, but: str | None = None) -> None:
    """There is no task that could still end `but` one, or none in these queues."""
    yard.until(
        lambda: {task_id for task_id, queue in yard.query(UNFINISHED) if not queues or queue in queues} <= {but},
        "no other task is left to run",
    )
