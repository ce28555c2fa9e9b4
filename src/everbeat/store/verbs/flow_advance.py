"""What follows from the end of a node, all of it in the transaction that ended it (P11, PROTOCOL 35).

In waves: nodes are closed, those that wait for them counted down, and what is decided about these is the next wave.
When nothing follows any more the workflow is looked at once: ended, paused by an error, or the nodes that may start are
enqueued. The end of a nested workflow is the end of its node, one level up.

Every count is taken once for all inputs that ended in this transaction, so the fan-in of ten thousand nodes costs what
its edges cost and no more. `advance` with no ends at all is the way to go on: for a start, a resume, a repair.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from everbeat.decide import splice
from everbeat.decide.flow import Flow, Turn, Waiting, counts_as_failed, nodes_asked, state_of, turn_of
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.flow import WORKFLOW_CANCELLED, WORKFLOW_FAILED, NodeStatus, OnError, WorkflowStatus
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import flow_hold, flow_ready
from everbeat.store.verbs.flow_rows import FlowRow, NodeEnd, among, find, nodes_in, save, values
from everbeat.store.verbs.records import add_events, text

Ends = dict[str, list[NodeEnd]]
"""By workflow."""
BY_ERROR = "error"
"""In `paused_by`, where it was no person."""

# The primary key, as all that follow.
STANDING = """
SELECT node, status, name, tolerated FROM everbeat_workflow_tasks WHERE workflow_id = ? AND node IN ({marks})"""
CLOSE = """
UPDATE everbeat_workflow_tasks SET status = ?, error_code = ?, error_message = ?, result = ?, finished_at = ?
 WHERE workflow_id = ? AND node = ?"""
FOLLOWING = """
SELECT next, count(*) FROM everbeat_workflow_edges WHERE workflow_id = ? AND node IN ({marks}) GROUP BY next"""
WAITING = """
SELECT node, deps, needed, deps_left, deps_ok, deps_failed, allow_failed, condition
  FROM everbeat_workflow_tasks WHERE workflow_id = ? AND node IN ({marks}) AND status = 'PENDING'"""
COUNT_DOWN = """
UPDATE everbeat_workflow_tasks SET deps_left = ?, deps_ok = ?, deps_failed = ?, status = ?
 WHERE workflow_id = ? AND node = ?"""

ANNOUNCED = {
    WorkflowStatus.COMPLETED: event.WORKFLOW_COMPLETED,
    WorkflowStatus.FAILED: event.WORKFLOW_FAILED,
    WorkflowStatus.PAUSED: event.WORKFLOW_PAUSED,
}


@dataclass(frozen=True, slots=True)
class Upwards:
    """What the end of a nested workflow is for the one it is nested in."""

    workflow_id: str
    end: NodeEnd


def advance(tx: Transaction, ends: Ends) -> None:
    """Until nothing follows any more."""
    waiting = {workflow_id: list(ended) for workflow_id, ended in ends.items()}
    while waiting:
        workflow_id, ended = waiting.popitem()
        upwards = go_on(tx, workflow_id, ended)
        if upwards is not None:
            waiting.setdefault(upwards.workflow_id, []).append(upwards.end)


def go_on(tx: Transaction, workflow_id: str, ended: Sequence[NodeEnd] = ()) -> Upwards | None:
    """One workflow, and what is nested in it as far as it is started here. Without ends, all of its nodes that may
    start are looked for."""
    flow = find(tx, workflow_id)
    if flow is None:
        return None
    wave, ready = list(ended), None if not ended else list[int]()
    while True:
        while wave:
            following = _count_down(tx, flow, _close(tx, flow, wave))
            wave = following.ends
            if ready is not None:
                ready += following.ready
        _settle(tx, flow)
        if flow.status is not WorkflowStatus.RUNNING:
            break
        started = flow_ready.enqueue(tx, flow, ready)
        wave = [end for child in started if (end := _started(tx, flow, child)) is not None]
        if not wave:
            break
    return _upwards(tx, flow)


@dataclass(slots=True)
class Following:
    """What was decided about nodes that wait."""

    ready: list[int] = field(default_factory=list)
    ends: list[NodeEnd] = field(default_factory=list)
    """Of those that will never start."""


def decide(tx: Transaction, workflow_id: str, counts: Mapping[int, Sequence[int]]) -> Following:
    """Count these nodes down, by inputs that ended, completed and failed, and let those start that may."""
    waiting = list(among(tx, WAITING, (workflow_id,), list(counts)))
    asked = {node for row in waiting for node in nodes_asked(row[7])}
    results = _results(tx, workflow_id, asked) if asked else {}
    following = Following()
    rows: list[tuple[object, ...]] = []
    for node, deps, needed, left, ok, failed, allow_failed, condition in waiting:
        ended, completed, lost = counts[node]
        left, ok, failed = left - ended, ok + completed, failed + lost
        known = Waiting(deps=deps, needed=needed, left=left, ok=ok, failed=failed, allow_failed=bool(allow_failed))
        turn = turn_of(known, condition, results)
        if turn.status is NodeStatus.READY:
            following.ready.append(node)
        elif turn.status is not NodeStatus.PENDING:
            following.ends.append(NodeEnd(node, turn))
        status = NodeStatus.READY if turn.status is NodeStatus.READY else NodeStatus.PENDING
        rows.append((left, ok, failed, status.value, workflow_id, node))
    tx.many(COUNT_DOWN, rows)
    return following


def _close(tx: Transaction, flow: FlowRow, wave: Iterable[NodeEnd]) -> list[NodeEnd]:
    """Those that had not ended before. The first failure that nothing tolerates is that of the workflow."""
    ends = {end.node: end for end in wave}
    closed: list[NodeEnd] = []
    for node, status, name, tolerated in among(tx, STANDING, (flow.id,), list(ends)):
        if NodeStatus(status).is_terminal:
            continue
        end = ends[node]
        closed.append(end)
        is_error = end.turn.status in (NodeStatus.FAILED, NodeStatus.CANCELLED) and not tolerated
        flow.fails_now |= is_error
        if is_error and flow.error_node is None:
            flow.error_node, flow.error_code = name, text(end.turn.code)
            flow.error_message = text(end.turn.message)
    tx.many(
        CLOSE,
        [
            (end.turn.status.value, text(end.turn.code), text(end.turn.message), end.result, tx.now, flow.id, end.node)
            for end in closed
        ],
    )
    flow.nodes_left -= len(closed)
    return closed


def _count_down(tx: Transaction, flow: FlowRow, closed: Sequence[NodeEnd]) -> Following:
    """Once for each node that waits, whatever the number of its inputs among these."""
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for end in closed:
        is_ok = end.turn.status is NodeStatus.COMPLETED
        alike[int(is_ok), int(counts_as_failed(end.turn.status, end.turn.code))].append(end.node)
    counts: dict[int, list[int]] = {}
    for (ok, failed), nodes in alike.items():
        for following, count in among(tx, FOLLOWING, (flow.id,), nodes):
            sums = counts.setdefault(following, [0, 0, 0])
            sums[0] += count
            sums[1] += count * ok
            sums[2] += count * failed
    return decide(tx, flow.id, counts) if counts else Following()


def _results(tx: Transaction, workflow_id: str, nodes: Iterable[int]) -> dict[int, bytes | None]:
    """Of those that have ended."""
    found = values(tx, workflow_id, nodes)
    return {node: value.result for node, value in found.items() if value.status.is_terminal}


def _settle(tx: Transaction, flow: FlowRow) -> None:
    """Write down how far it is, and what it has become."""
    before = flow.status
    if flow.fails_now and flow.on_error is OnError.PAUSE and before is WorkflowStatus.RUNNING:
        flow.paused_by = BY_ERROR
    required = None
    if flow.success is not None and not flow.nodes_left:
        required = [value.status for value in values(tx, flow.id, nodes_in(flow.success)).values()]
    flow.status = state_of(
        Flow(
            status=before,
            on_error=flow.on_error,
            nodes_left=flow.nodes_left,
            has_error=flow.error_node is not None,
            is_stopped_by_error=flow.paused_by == BY_ERROR,
            required=required,
        )
    )
    save(tx, flow)
    if flow.status is before:
        return
    if flow.status is WorkflowStatus.PAUSED:
        flow_hold.hold_inside(tx, flow, by=BY_ERROR)
    announce(tx, flow)


def announce(tx: Transaction, flow: FlowRow, **facts: object) -> None:
    """It has reached another state. Those that wait for it are woken after the commit."""
    if flow.status.is_terminal:
        tx.done.add(flow.id)
    if flow.status in ANNOUNCED and not flow.is_map:
        told = {"workflow": flow.id, "name": flow.name, "node": flow.error_node, "code": flow.error_code,
                "reason": flow.error_message}  # fmt: skip
        add_events(tx, [Event(name=ANNOUNCED[flow.status], facts=told | facts)])


def _started(tx: Transaction, flow: FlowRow, child: "flow_ready.Started | NodeEnd") -> NodeEnd | None:
    """What is nested begins. It may have ended at once."""
    if isinstance(child, NodeEnd):
        return child
    upwards = go_on(tx, child.workflow_id)
    return None if upwards is None else upwards.end


def _upwards(tx: Transaction, flow: FlowRow) -> Upwards | None:
    if flow.parent_id is None or flow.parent_node is None or flow.nodes_left or not flow.status.is_terminal:
        return None
    return Upwards(flow.parent_id, ending_of(tx, flow))


def ending_of(tx: Transaction, flow: FlowRow) -> NodeEnd:
    """A nested workflow that has ended, as the end of the node that it is."""
    node = flow.parent_node if flow.parent_node is not None else -1
    if flow.status is WorkflowStatus.CANCELLED:
        said = f"the workflow {flow.name} was cancelled"
        return NodeEnd(node, Turn(status=NodeStatus.CANCELLED, code=WORKFLOW_CANCELLED, message=said))
    if flow.status is WorkflowStatus.FAILED:
        code, said = flow.error_code or WORKFLOW_FAILED, f"{flow.error_node}: {flow.error_message}"
        return NodeEnd(node, Turn(status=NodeStatus.FAILED, code=code, message=said))
    outputs = nodes_in(flow.outputs)
    found = values(tx, flow.id, outputs)
    results = {found[output].name: found[output].result or splice.HOLE for output in outputs}
    if flow.is_map:
        result = splice.as_list(list(results.values()))
    else:
        result = next(iter(results.values())) if len(results) == 1 else splice.as_object(results)
    if len(result) > flow.max_bytes:
        said = f"the results of its nodes take {len(result):,} bytes, the limit is {flow.max_bytes:,}"
        return NodeEnd(node, Turn(status=NodeStatus.FAILED, code="RESULT_TOO_LARGE", message=said))
    return NodeEnd(node, Turn(status=NodeStatus.COMPLETED), result)
