"""Nodes that may start: tasks become tasks, what is nested begins, a map gets a node for each element.

A task has an id that its node knows before, so making it twice makes one. Its arguments are those of the node,
with holes where results belong: they are put in when it is claimed (flow_args.py), however many nodes want the same
result and however large it is. Only the elements of a map are copied, each of them once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from everbeat.decide import splice
from everbeat.decide.flow import Turn
from everbeat.model.flow import (
    RESULT_NOT_AVAILABLE,
    NewNode,
    NewWorkflow,
    NodeKind,
    NodeStatus,
    OnError,
    WorkflowStatus,
)
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs import flow_given
from everbeat.store.verbs.flow_rows import FlowRow, NodeEnd, Unreadable, find, referred_to, save, values
from everbeat.store.verbs.flow_start import insert
from everbeat.store.verbs.turns import LINE, let_go

ARGUMENTS_INVALID = "ARGUMENTS_INVALID"

References = Mapping[int, Sequence[splice.Place]]
"""By node."""
Plain = tuple[Sequence[int], str, str, str | None]
"""Nodes that become tasks: their numbers, queue, name of the tasks, exclusive key."""

# The primary key, as all that follow.
READY_COLUMNS = "node, kind, takes, allow_failed + is_partial, queue, task_name, exclusive_key"
READY = f"""
SELECT {READY_COLUMNS} FROM everbeat_workflow_tasks
 WHERE workflow_id = ? AND node IN ({{marks}}) AND status = 'READY' ORDER BY node"""
# A walk through the nodes of one workflow.
ALL_READY = f"""
SELECT {READY_COLUMNS} FROM everbeat_workflow_tasks WHERE workflow_id = ? AND status = 'READY' ORDER BY node"""
# One that is there already was revived, and held for this moment (flow_revived.py).
ENQUEUE = f"""
INSERT INTO everbeat_tasks (id, name, queue, priority, max_attempts, policy, exclusive_key, good_until, created_at,
                            run_at, due_at, waiting_for, workflow_id, node, refs, args)
SELECT task_id, task_name, queue, priority, max_attempts, policy, exclusive_key, good_until, ?, ? + delay_us,
       CASE WHEN delay_us > 0 THEN ? + delay_us END,
       CASE WHEN delay_us = 0 AND exclusive_key IS NOT NULL THEN '{LINE}' || exclusive_key END,
       n.workflow_id, n.node, refs, args
  FROM everbeat_workflow_tasks n
  LEFT JOIN everbeat_workflow_calls c ON c.workflow_id = n.workflow_id AND c.node = n.node
 WHERE n.workflow_id = ? AND n.node IN ({{marks}}) ORDER BY n.node
ON CONFLICT (id) DO UPDATE
   SET held = 0, run_at = excluded.created_at, refs = excluded.refs, args = excluded.args,
       waiting_for = CASE WHEN everbeat_tasks.exclusive_key IS NOT NULL
                          THEN '{LINE}' || everbeat_tasks.exclusive_key END
 WHERE everbeat_tasks.status = 'PENDING' AND everbeat_tasks.held = 1
   AND everbeat_tasks.workflow_id = excluded.workflow_id"""
ENQUEUED = """
UPDATE everbeat_workflow_tasks SET status = 'ENQUEUED', started_at = ? WHERE workflow_id = ? AND node IN ({marks})"""

START = """
UPDATE everbeat_workflow_tasks SET status = 'RUNNING', started_at = ?
 WHERE workflow_id = ? AND node = ? AND status = 'READY'"""
NESTED = """
SELECT n.name, n.child_id, n.task_name, n.queue, n.priority, n.max_attempts, n.policy, n.exclusive_key, n.good_until,
       n.delay_us, c.args, c.refs, n.over
  FROM everbeat_workflow_tasks n
  LEFT JOIN everbeat_workflow_calls c ON c.workflow_id = n.workflow_id AND c.node = n.node
 WHERE n.workflow_id = ? AND n.node = ?"""
REFERENCES = "SELECT node, refs FROM everbeat_workflow_calls WHERE workflow_id = ? AND node IN ({marks})"

LOST = """
SELECT node, name, error_message FROM everbeat_workflow_tasks
 WHERE workflow_id = ? AND node IN ({marks}) AND kind = 'workflow' AND status = 'COMPLETED' AND result IS NULL"""

SHORT = 256
"""Bytes of a result that is read as soon as its length is."""
# The primary key, and that of the task, both. The length of a value is read without the value, unless that is short.
MEASURED = f"""
SELECT n.node, length(coalesce(n.result, t.result)),
       CASE WHEN n.kind = 'workflow' AND n.status = 'COMPLETED' AND n.result IS NULL THEN 1 ELSE 0 END,
       CASE WHEN n.status = 'COMPLETED' AND length(coalesce(n.result, t.result)) <= {SHORT}
            THEN coalesce(n.result, t.result) END
  FROM everbeat_workflow_tasks n LEFT JOIN everbeat_tasks t ON t.id = n.task_id
 WHERE n.workflow_id = ? AND n.node IN ({{marks}})"""


@dataclass(frozen=True, slots=True)
class Started:
    """A nested workflow that begins now."""

    workflow_id: str


def enqueue(tx: Transaction, flow: FlowRow, nodes: Sequence[int] | None) -> list[Started | NodeEnd]:
    """Start those of these nodes that may start; None: of all. If it returns ends, see to them first and call it
    again."""
    ready = tx.all(ALL_READY, (flow.id,)) if nodes is None else tx.among(READY, (flow.id,), sorted(nodes))
    if not ready:
        return []
    tasks = [row for row in ready if row[1] == NodeKind.TASK]
    several = {row[0]: row[3] for row in tasks if not is_plain(*row[1:4])}
    references = {node: splice.load(refs) for node, refs in tx.among(REFERENCES, (flow.id,), list(several))}
    if not _are_fit(tx, flow, references):
        strict = {node: places for node, places in references.items() if not several[node]}
        ends: list[Started | NodeEnd] = [*_without_result(tx, flow, strict)] or [*_too_large(tx, flow, references)]
        if ends:
            return ends
    tx.change_among(ENQUEUED, (tx.now, flow.id), [row[0] for row in tasks])
    add_tasks(tx, flow.id, [([row[0]], *row[4:]) for row in tasks])
    flow_given.give(tx, flow.id, [node for node, _, takes, is_lenient, *_ in tasks if takes and is_lenient])
    return [_begin(tx, flow, row[0], NodeKind(row[1])) for row in ready if row[1] != NodeKind.TASK]


def is_plain(kind: str, takes: int, is_lenient: int) -> bool:
    """Whether a node can be enqueued without a look at what it takes: it is a task that takes at most one result, which
    can not be too large by itself. A lenient node may take none: its results may be missing."""
    return kind == NodeKind.TASK and takes <= (0 if is_lenient else 1)


def add_tasks(tx: Transaction, workflow_id: str, alike: Sequence[Plain]) -> None:
    nodes = sorted(node for nodes, *_ in alike for node in nodes)
    tx.change_among(ENQUEUE, (tx.now, tx.now, tx.now, workflow_id), nodes)
    tx.wakes.update({(queue, name) for _, queue, name, _ in alike})
    let_go(tx, [key for _, _, _, key in alike])


def _are_fit(tx: Transaction, flow: FlowRow, references: References) -> bool:
    """All results that they take are there, and fit together into the arguments of one node. False: look at each.
    Short ones are at hand if one of these nodes is claimed in this transaction."""
    taken = [[named for _, named in places] for places in references.values()]
    if any(len(set(one)) < len(one) or any(outwards for _, outwards in one) for one in taken):
        return False
    found = tx.among(MEASURED, (flow.id,), sorted({node for one in taken for node, _ in one}))
    at_hand = {(node, 0): bytes(value) for node, _, _, value in found if value is not None}
    tx.results.setdefault(flow.id, {}).update(at_hand)
    return sum(size or 0 for _, size, _, _ in found) <= flow.max_bytes and not any(lost for _, _, lost, _ in found)


def _without_result(tx: Transaction, flow: FlowRow, references: References) -> Iterator[NodeEnd]:
    """Those who take what a nested workflow has completed without."""
    wanted = {named for places in references.values() for _, named in places}
    lost = {named: f"{row[1]} has no result: {row[2]}" for named, row in referred_to(tx, LOST, flow.id, wanted)}
    for node, places in references.items() if lost else ():
        for said in (lost[named] for _, named in places if named in lost):
            yield NodeEnd(node, Turn(status=NodeStatus.FAILED, code=RESULT_NOT_AVAILABLE, message=said))
            break


def _too_large(tx: Transaction, flow: FlowRow, references: References) -> Iterator[NodeEnd]:
    """Arguments that no process should be given."""
    wanted = {named for places in references.values() for _, named in places}
    lengths = {named: row[1] or 0 for named, row in referred_to(tx, MEASURED, flow.id, wanted)}
    for node, places in references.items():
        size = sum(lengths.get(named, 0) for _, named in places)
        if size > flow.max_bytes:
            said = f"the results that are its arguments take {size:,} bytes, the limit is {flow.max_bytes:,}"
            yield NodeEnd(node, Turn(status=NodeStatus.FAILED, code=ARGUMENTS_INVALID, message=said))


def _begin(tx: Transaction, flow: FlowRow, node: int, kind: NodeKind) -> Started | NodeEnd:
    row = tx.one(NESTED, (flow.id, node))
    if row is None or row[1] is None:
        raise ValueError(f"node {node} of workflow {flow.id} names no workflow")
    child = find(tx, row[1])
    if child is None and kind is NodeKind.MAP:
        taken = [(0, (row[12], 0)), *((at, of) for at, of in splice.load(row[11]) if of != splice.ELEMENT)]
        for lost in _without_result(tx, flow, {node: taken}):
            return lost
        try:
            _expand(tx, flow, node, row)
        except NoList as error:
            return NodeEnd(node, Turn(status=NodeStatus.FAILED, code=ARGUMENTS_INVALID, message=str(error)))
    elif child is None:
        raise ValueError(f"the workflow {row[1]} is not there")
    elif child.status is WorkflowStatus.PENDING:
        child.status = WorkflowStatus.RUNNING
        save(tx, child)
    tx.run(START, (tx.now, flow.id, node))
    return Started(row[1])


class NoList(Exception):
    """What a map should run over is none."""


def _expand(tx: Transaction, flow: FlowRow, node: int, row: Row) -> None:
    """A workflow of its own, with a node for each element. What its arguments refer to is one workflow further out."""
    name, child_id, task_name, queue, priority, max_attempts, policy, exclusive_key, good_until, delay_us, args = row[
        :11
    ]
    over = values(tx, flow.id, [row[12]]).get(row[12])
    if over is None or over.result is None:
        raise NoList(f"{over.name if over else 'its input'} has no result to run over")
    try:
        items = splice.elements(over.result)
    except ValueError as error:
        raise NoList(f"the result of {over.name} can not be run over: {error}") from error
    references = splice.load(row[11])
    if not isinstance(args, bytes):
        raise Unreadable(f"the arguments of {name} in workflow {flow.id} are missing. Somebody has deleted them")
    nodes = []
    for number, item in enumerate(items):
        whole, left = splice.put_some_in(args, references, {splice.ELEMENT: item})
        nodes.append(
            NewNode(
                name=f"{name}[{number}]", kind=NodeKind.TASK, task_id=f"{child_id}.{number}", task_name=task_name,
                queue=queue, priority=priority, max_attempts=max_attempts, policy=policy, exclusive_key=exclusive_key,
                good_until=good_until, delay_us=delay_us, args=whole,
                references=tuple((at, number, outwards + 1) for at, (number, outwards) in left),
            )
        )  # fmt: skip
    child = NewWorkflow(
        id=child_id, name=f"{flow.name}.{name}", on_error=OnError.FAIL, nodes=nodes, outputs=tuple(range(len(nodes))),
        max_bytes=flow.max_bytes, parent_id=flow.id, parent_node=node,
    )  # fmt: skip
    insert(tx, child, root_id=flow.root_id, status=WorkflowStatus.RUNNING, is_map=True)
