"""A workflow enters the store: all of it, with everything nested in it, or nothing.

The same id and the same content again is the workflow that is there; other content under its id changes nothing.
"""

import json
from collections.abc import Sequence

from everbeat.decide import splice
from everbeat.model.flow import NewNode, NewWorkflow, NodeKind, NodeStatus, WorkflowStatus
from everbeat.model.task import Enqueued
from everbeat.store.transaction import Row, Transaction

INSERT = """
INSERT INTO everbeat_workflows (id, name, status, on_error, root_id, parent_id, parent_node, is_map, outputs, success,
                                digest, max_bytes, nodes, nodes_left, created_at, started_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING"""
DIGEST = "SELECT digest, parent_id FROM everbeat_workflows WHERE id = ?"

COLUMNS = ("workflow_id", "node", "name", "kind", "status", "task_id", "child_id", "task_name", "queue", "priority",
           "max_attempts", "policy", "exclusive_key", "good_until", "delay_us", "over", "deps", "needed", "is_partial",
           "deps_left", "allow_failed", "tolerated", "condition", "takes", "shape")  # fmt: skip
TEXTS = frozenset({"workflow_id", "name", "kind", "status", "task_id", "child_id", "task_name", "queue", "policy",
                   "exclusive_key", "condition", "shape"})  # fmt: skip
INSERT_NODE = f"INSERT INTO everbeat_workflow_tasks ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
INSERT_CALL = "INSERT INTO everbeat_workflow_calls (workflow_id, node, refs, args) VALUES (?, ?, ?, ?)"
INSERT_EDGE = "INSERT INTO everbeat_workflow_edges (workflow_id, node, next) VALUES (?, ?, ?)"


def start(tx: Transaction, flows: Sequence[NewWorkflow]) -> Enqueued:
    """The first of them is the root, the others are nested in it. They are in the store, and nothing has begun."""
    root = flows[0]
    if not insert(tx, root, root_id=root.id, status=WorkflowStatus.RUNNING):
        stored = tx.one(DIGEST, (root.id,))
        return Enqueued(root.id, created=False, conflict=stored is None or stored != (root.digest, None))
    for flow in flows[1:]:
        insert(tx, flow, root_id=root.id, status=WorkflowStatus.PENDING)
    return Enqueued(root.id, created=True)


def insert(
    tx: Transaction, flow: NewWorkflow, *, root_id: str, status: WorkflowStatus, is_map: bool = False
) -> bool:  # fmt: skip
    count = len(flow.nodes)
    success = None if flow.success is None else json.dumps(flow.success)
    added = tx.run(
        INSERT,
        (flow.id, flow.name, status.value, flow.on_error.value, root_id, flow.parent_id, flow.parent_node, int(is_map),
         json.dumps(flow.outputs), success, flow.digest, flow.max_bytes, count, count, tx.now,
         tx.now if status is WorkflowStatus.RUNNING else None),
    )  # fmt: skip
    if not added:
        return False
    nodes = list(enumerate(flow.nodes))
    calls = [(flow.id, at, splice.dump(node.references), node.args) for at, node in nodes if node.args is not None]
    nested = frozenset(number for number, node in nodes if node.kind is NodeKind.WORKFLOW)
    takes = {number: len(node.references) if is_map else _takes(node, nested) for number, node in nodes}
    tx.soon(INSERT_NODE, [_row(flow.id, number, node, takes[number]) for number, node in nodes])
    tx.soon(INSERT_CALL, calls)
    tx.soon(INSERT_EDGE, [(flow.id, before, number) for number, node in nodes for before in node.inputs])
    return True


def _takes(node: NewNode, nested: frozenset[int]) -> int:
    """Two at least, so that it is looked at before it starts, if one of them may be a nested workflow: that may have
    completed without a result. For the elements of a map this is looked at once, when it begins."""
    may_be_missing = any(named in nested or any(outwards) for _, named, *outwards in node.references)
    return max(len(node.references), 2 if may_be_missing else 0)


def _row(workflow_id: str, number: int, node: NewNode, takes: int) -> Row:
    deps = len(node.inputs)
    return (
        workflow_id, number, node.name, node.kind.value, (NodeStatus.PENDING if deps else NodeStatus.READY).value,
        node.task_id, node.child_id, node.task_name, node.queue, node.priority, node.max_attempts, node.policy,
        node.exclusive_key, node.good_until, node.delay_us, node.over, deps, node.needed, int(node.is_partial), deps,
        int(node.allow_failed), int(node.is_tolerated), node.condition, takes, node.shape,
    )  # fmt: skip
