"""The read side of workflows: how far they are, what became of their nodes, what they resulted in. Only `results`
and `ends`, which are for the sender, have what the code of a sensitive task said in its errors (PROTOCOL 41)."""

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from everbeat.model.flow import NodeInfo, NodeKind, NodeResult, NodeStatus, OnError, WorkflowInfo, WorkflowStatus
from everbeat.model.state import TaskStatus
from everbeat.store.moments import moment, moment_or_none
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs.flow_rows import known, nodes_in
from everbeat.store.verbs.looking import QUEUE_HOLDS, Waits, shown_message
from everbeat.store.verbs.turns import PAUSED

INFO = """
SELECT id, name, status, on_error, parent_id, nodes, nodes_left, created_at, started_at, finished_at, error_node,
       error_code, error_message, stuck, paused_by
  FROM everbeat_workflows"""
# The primary key; for each what is halted in its tree, by everbeat_workflows_halted; then up to the root by the primary
# key. What is paused with the one around it is not told. (Joins instead of subqueries: PostgreSQL takes what is halted
# in one tree for so little that it reads what is halted in all.)
PAUSED_INSIDE = """
SELECT a.id, (
    WITH RECURSIVE around(id, paused) AS (
        SELECT i.parent_id, i.id FROM everbeat_workflows i
         WHERE i.root_id = a.root_id AND i.status = 'PAUSED'
           AND (SELECT p.status FROM everbeat_workflows p WHERE p.id = i.parent_id) <> 'PAUSED'
        UNION
        SELECT (SELECT w.parent_id FROM everbeat_workflows w WHERE w.id = o.id), o.paused FROM around o
         WHERE o.id IS NOT NULL)
    SELECT min(paused) FROM around WHERE id = a.id)
  FROM everbeat_workflows a WHERE a.id IN ({marks})"""
OUTPUTS = "SELECT outputs FROM everbeat_workflows WHERE id = ?"

STATUSES, ON_ERROR = frozenset(WorkflowStatus), frozenset(OnError)
"""What a hand may have written instead is passed over."""

# The primary key, and that of the task.
NODES = f"""
SELECT n.node, n.name, n.kind, n.status, n.task_id, n.task_name, n.child_id, t.status, t.attempt, t.started_at,
       n.started_at, n.finished_at, n.error_code, n.error_message, t.waiting_for, n.policy, t.id IS NOT NULL,
       (SELECT w.status FROM everbeat_workflows w WHERE w.id = n.child_id),
       (SELECT w.status FROM everbeat_workflows w WHERE w.id = n.workflow_id), t.queue, t.name, t.due_at,
       CASE WHEN t.status = 'PENDING' THEN {QUEUE_HOLDS.format(task="t")} END
  FROM everbeat_workflow_tasks n LEFT JOIN everbeat_tasks t ON t.id = n.task_id
 WHERE n.workflow_id = ? ORDER BY n.node"""
EDGES = """
SELECT e.next, n.name FROM everbeat_workflow_edges e
  JOIN everbeat_workflow_tasks n ON n.workflow_id = e.workflow_id AND n.node = e.node
 WHERE e.workflow_id = ? ORDER BY e.next, e.node"""
BECOME = """n.name, n.kind, n.status, n.task_id, n.task_name, n.shape, n.child_id, n.error_code,
       coalesce(t.error_message, n.error_message), t.attempt, t.error"""
OF_NODES = "FROM everbeat_workflow_tasks n LEFT JOIN everbeat_tasks t ON t.id = n.task_id WHERE n.workflow_id = ?"
ENDS = f"SELECT {BECOME}, NULL {OF_NODES} ORDER BY n.node"
RESULTS = f"SELECT {BECOME}, coalesce(n.result, t.result) {OF_NODES} ORDER BY n.node"
RESULTS_OF = f"SELECT {BECOME}, coalesce(n.result, t.result) {OF_NODES} AND n.node IN ({{marks}}) ORDER BY n.node"


def get(tx: Transaction, workflow_id: str) -> WorkflowInfo | None:
    row = tx.one(INFO + " WHERE id = ?", (workflow_id,))
    return None if row is None else _info(row)


def workflows(
    tx: Transaction, *, statuses: Collection[WorkflowStatus], name: str | None, limit: int
) -> list[WorkflowInfo]:
    asked: list[tuple[str, list[Any]]] = [("parent_id IS NULL", [])]
    if statuses:
        asked.append((f"status IN ({', '.join('?' * len(statuses))})", [str(status) for status in statuses]))
    if name is not None:
        asked.append(("name = ?", [name]))
    where = " AND ".join(said for said, _ in asked)
    values = [value for _, given in asked for value in given]
    rows = tx.all(f"{INFO} WHERE {where} ORDER BY created_at DESC, id DESC LIMIT ?", [*values, limit])
    return with_waits(tx, [_info(row) for row in rows if row[2] in STATUSES and row[3] in ON_ERROR])


def with_waits(tx: Transaction, found: Sequence[WorkflowInfo]) -> list[WorkflowInfo]:
    """The same workflows; of those that are RUNNING, also which paused workflow inside of them they wait for."""
    running = [info.id for info in found if info.status is WorkflowStatus.RUNNING]
    paused: dict[str, str | None] = dict(tx.among(PAUSED_INSIDE, (), running))
    return [replace(info, waiting_for=_paused(by)) if (by := paused.get(info.id)) else info for info in found]


def _paused(workflow_id: str) -> str:
    return f"workflow {workflow_id}, which is paused"


def nodes(tx: Transaction, workflow_id: str) -> list[NodeInfo]:
    after: defaultdict[int, list[str]] = defaultdict(list)
    for node, name in tx.rows(EDGES, (workflow_id,)):
        after[node].append(name)
    waits = Waits(tx)
    return [_node(row, after[row[0]], workflow_id, waits) for row in tx.all(NODES, (workflow_id,))]


def results(tx: Transaction, workflow_id: str, *, outputs_only: bool) -> list[NodeResult]:
    outputs = tx.one(OUTPUTS, (workflow_id,)) if outputs_only else None
    if outputs is None:
        rows = tx.all(RESULTS, (workflow_id,))
    else:
        rows = tx.among(RESULTS_OF, (workflow_id,), sorted(set(nodes_in(outputs[0]))))
    return [_result(row, workflow_id) for row in rows]


def ends(tx: Transaction, workflow_id: str) -> list[NodeResult]:
    """As `results`, without reading any: there may be thousands, and large ones."""
    return [_result(row, workflow_id) for row in tx.all(ENDS, (workflow_id,))]


def _info(row: Row) -> WorkflowInfo:
    return WorkflowInfo(
        id=row[0], name=row[1], status=known(WorkflowStatus, row[2], of=row[0]),
        on_error=known(OnError, row[3], of=row[0]), parent_id=row[4],
        node_count=row[5], nodes_left=row[6], created_at=moment(row[7]), started_at=moment_or_none(row[8]),
        finished_at=moment_or_none(row[9]), error_node=row[10], error_code=row[11], error_message=row[12],
        stuck=row[13], paused_by=row[14],
    )  # fmt: skip


def _node(row: Row, after: list[str], workflow_id: str, waits: Waits) -> NodeInfo:
    status = known(NodeStatus, row[3], of=workflow_id)
    if status is NodeStatus.ENQUEUED and row[7] == TaskStatus.RUNNING:
        status = NodeStatus.RUNNING
    started = row[9] if row[2] == NodeKind.TASK else row[10]
    is_over = started is not None and row[11] is not None
    return NodeInfo(
        node=row[0], name=row[1], kind=known(NodeKind, row[2], of=workflow_id), status=status,
        task_id=row[4] if row[16] else None, task_name=row[5],
        workflow_id=row[6], after=after, attempt=row[8] or 0, started_at=moment_or_none(started),
        finished_at=moment_or_none(row[11]), duration=timedelta(microseconds=row[11] - started) if is_over else None,
        error_code=row[12], error_message=shown_message(row[12], row[13], row[15]),
        waiting_for=_waiting_for(status, row, workflow_id, waits),
    )  # fmt: skip


def _waiting_for(status: NodeStatus, row: Row, workflow_id: str, waits: Waits) -> str | None:
    child_id, child, own = row[6], row[17], row[18]
    if child == WorkflowStatus.PAUSED and not status.is_terminal:
        return _paused(child_id)
    if status is NodeStatus.READY:
        not_begun = "its workflow, which has not begun" if own == WorkflowStatus.PENDING else None
        return f"{PAUSED}{workflow_id}" if own == WorkflowStatus.PAUSED else not_begun
    if status is not NodeStatus.ENQUEUED or row[7] is None:
        return None
    return waits.of(status=row[7], queue=row[19], name=row[20], stored=row[14], due_at=row[21], held=row[22])


def _result(row: Row, workflow_id: str) -> NodeResult:
    name, kind, status, task_id, task_name, shape, child_id, code, message, attempt, error, result = row
    more = json.loads(error) if error else {}
    return NodeResult(
        name=name, kind=known(NodeKind, kind, of=workflow_id), status=known(NodeStatus, status, of=workflow_id),
        task_id=task_id, task_name=task_name, shape=shape, result=result, error_code=code, error_message=message,
        attempt=attempt or 0, exception_type=more.get("type"), traceback=more.get("traceback"), workflow_id=child_id,
    )  # fmt: skip
