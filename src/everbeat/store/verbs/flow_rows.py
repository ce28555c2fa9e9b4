"""The rows of workflows, as the verbs read and write them. Whoever writes holds the lock of the tree (flow_ends.py)."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from everbeat.decide.flow import Turn, counts_as_failed
from everbeat.errors import EverbeatError
from everbeat.model.flow import RESULT_NOT_AVAILABLE, Named, NodeStatus, OnError, WorkflowStatus
from everbeat.store.transaction import Row, Transaction

T = TypeVar("T")
W = TypeVar("W", bound=StrEnum)
CHUNK = 500
NUMBERS = range(2**31)
"""What a node may have as its number: all that a statement can ask for."""

FLOW_COLUMNS = """id, name, status, on_error, root_id, parent_id, parent_node, is_map, outputs, success, max_bytes,
       nodes_left, error_node, error_code, error_message, paused_by"""
FLOW = f"SELECT {FLOW_COLUMNS} FROM everbeat_workflows WHERE id = ?"
# The primary key and everbeat_workflows_root
INSIDE = f"""
SELECT {FLOW_COLUMNS} FROM everbeat_workflows WHERE parent_id IS NOT NULL AND root_id = ?"""

# The primary keys, both.
FLOWS = f"SELECT {FLOW_COLUMNS} FROM everbeat_workflows WHERE id IN ({{marks}})"
NESTED_IN = """
SELECT workflow_id, child_id FROM everbeat_workflow_tasks WHERE workflow_id IN ({marks}) AND child_id IS NOT NULL"""

SAVE = """
UPDATE everbeat_workflows
   SET status = ?, nodes_left = ?, error_node = ?, error_code = ?, error_message = ?, paused_by = ?,
       started_at = coalesce(started_at, ?),
       finished_at = CASE WHEN ? IN ('COMPLETED', 'FAILED', 'CANCELLED') THEN coalesce(finished_at, ?) END
 WHERE id = ?"""

AROUND = "SELECT parent_id FROM everbeat_workflows WHERE id = ?"

# The primary key, and that of the task.
VALUES = """
SELECT n.node, n.name, n.status, n.task_id, coalesce(n.result, t.result), n.error_code, n.error_message
  FROM everbeat_workflow_tasks n LEFT JOIN everbeat_tasks t ON t.id = n.task_id
 WHERE n.workflow_id = ? AND n.node IN ({marks})"""


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """A node has ended, or is about to."""

    node: int
    turn: Turn
    result: bytes | None = None
    """Of a map or a nested workflow. That of a task is in its row."""
    is_told: bool = False
    """It failed by what is in it, which the workflow was told when it did."""


@dataclass(frozen=True, slots=True)
class Value:
    """What a node has become, for whoever asked for its result."""

    node: int
    name: str
    status: NodeStatus
    task_id: str | None
    result: bytes | None
    code: str | None
    message: str | None


def is_lost(value: Value) -> bool:
    """It has no result because something failed. One that was not wanted has none, and that is null."""
    is_failed = counts_as_failed(value.status, value.code) or value.code == RESULT_NOT_AVAILABLE
    return value.result is None and is_failed


@dataclass(slots=True)
class FlowRow:
    id: str
    name: str
    status: WorkflowStatus
    on_error: OnError
    root_id: str
    parent_id: str | None
    parent_node: int | None
    is_map: int
    outputs: str
    success: str | None
    max_bytes: int
    nodes_left: int
    error_node: str | None
    error_code: str | None
    error_message: str | None
    paused_by: str | None
    fails_now: bool = False
    """A node has failed in this transaction, and nothing tolerates it."""


def find(tx: Transaction, workflow_id: str) -> FlowRow | None:
    row = tx.one(FLOW, (workflow_id,))
    return None if row is None else read_flow(row)


def tree(tx: Transaction, flow: FlowRow) -> list[FlowRow]:
    """It and all that is nested in it, each before what is inside it."""
    if flow.parent_id is not None:
        _, *nested = with_nested(tx, [flow.id])
        return [flow, *(one for one, _ in nested)]
    inside: dict[str | None, list[FlowRow]] = {}
    for row in tx.all(INSIDE, (flow.root_id,)):
        found = read_flow(row)
        inside.setdefault(found.parent_id, []).append(found)
    ordered = [flow]
    for one in ordered:
        ordered += inside.pop(one.id, ())  # once: who writes by hand can nest a workflow in itself
    return ordered


def with_nested(tx: Transaction, children: Sequence[str]) -> Iterator[tuple[FlowRow, str]]:
    """Each of these and all that is inside it, with its id: level by level, and not the tree around them, which may
    have thousands of their kind."""
    inside = {child_id: child_id for child_id in children}
    wave = list(inside)
    while wave:
        for row in tx.among(FLOWS, (), wave):
            flow = read_flow(row)
            yield flow, inside[flow.id]
        found = {inner: inside[outer] for outer, inner in tx.among(NESTED_IN, (), wave)}
        wave = sorted(found.keys() - inside.keys())  # once: who writes by hand can nest a workflow in itself
        inside = found | inside


def save(tx: Transaction, flow: FlowRow) -> None:
    started = tx.now if flow.status is WorkflowStatus.RUNNING else None
    tx.soon(
        SAVE,
        [(flow.status.value, flow.nodes_left, flow.error_node, flow.error_code, flow.error_message, flow.paused_by,
          started, flow.status.value, tx.now, flow.id)],
    )  # fmt: skip


def values(tx: Transaction, workflow_id: str, nodes: Iterable[int]) -> dict[int, Value]:
    return {row[0]: value_of(row) for row in tx.among(VALUES, (workflow_id,), sorted(set(nodes)))}


def value_of(row: Row) -> Value:
    return Value(row[0], row[1], NodeStatus(row[2]), row[3], row[4], row[5], row[6])


def referred_to(tx: Transaction, sql: str, workflow_id: str, wanted: Collection[Named]) -> Iterator[tuple[Named, Row]]:
    """Rows of nodes of a workflow and of those around it; the first column is the number of the node."""
    distances = {outwards for _, outwards in wanted}
    by_distance = {distance: {node for node, outwards in wanted if outwards == distance} for distance in distances}
    scope: str | None = workflow_id
    passed = {scope}
    for distance in range(max(by_distance, default=-1) + 1):
        if distance:
            around = tx.one(AROUND, (scope,))
            scope = around[0] if around else None
            if scope in passed or scope is None:
                return
            passed.add(scope)
        for row in tx.among(sql, (scope,), sorted(by_distance.get(distance, ()))):
            yield (row[0], distance), row


def chunks(wanted: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(wanted), CHUNK):
        yield wanted[start : start + CHUNK]


def read_flow(row: Row) -> FlowRow:
    status, on_error = known(WorkflowStatus, row[2], of=row[0]), known(OnError, row[3], of=row[0])
    return FlowRow(row[0], row[1], status, on_error, *row[4:])


class Unreadable(EverbeatError, ValueError):
    """A row of a workflow says what no row of ours says."""


def known(words: type[W], stored: str, *, of: object) -> W:
    try:
        return words(stored)
    except ValueError:
        raise Unreadable(
            f"workflow {of} can not be read: {str(stored)[:50]!r} is no {words.__name__}. Somebody wrote that by hand. "
            f"It is left alone."
        ) from None


def nodes_in(stored: str) -> list[int]:
    try:
        said = json.loads(stored)
    except ValueError:
        said = None
    if not isinstance(said, list) or not all(type(node) is int and node in NUMBERS for node in said):
        raise Unreadable(f"a list of nodes is not understood: {stored[:100]!r}. Somebody wrote that by hand")
    return said
