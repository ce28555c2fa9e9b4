"""What follows from the end of a node, all of it in the transaction that ended it (P11, PROTOCOL 35).

In waves: nodes are closed, those that wait for them counted down, and what is decided about these is the next wave.
When nothing follows any more the workflow is looked at once: ended, paused by an error, or the nodes that may start are
enqueued. The end of a nested workflow is the end of its node, one level up.

Every count is taken once for all inputs that ended in this transaction, so the fan-in of ten thousand nodes costs what
its edges cost and no more. `advance` with no ends at all is the way to go on: for a start, a resume, a repair.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from everbeat.crashpoint import crash_point
from everbeat.decide import splice
from everbeat.decide.flow import (
    DONE,
    Flow,
    Turn,
    Waiting,
    counts_as_failed,
    end_in_ended,
    nodes_asked,
    state_of,
    turn_of,
)
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.flow import (
    BY_ERROR,
    RESULT_NOT_AVAILABLE,
    WORKFLOW_FAILED,
    NodeStatus,
    OnError,
    WorkflowStatus,
)
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs import flow_blame, flow_hold, flow_ready, flow_revived, flow_unbegun
from everbeat.store.verbs.flow_rows import FlowRow, NodeEnd, Unreadable, find, is_lost, nodes_in, save, values
from everbeat.store.verbs.records import add_events, text

Ends = dict[str, list[NodeEnd]]
Done = dict[str, list[int]]
"""By workflow."""
Closed = Mapping[tuple[int, int], Sequence[int]]
"""Nodes, by whether they completed and whether they failed."""

# The primary key, as all that follow.
STANDING = """
SELECT node, status, name, tolerated, child_id FROM everbeat_workflow_tasks
 WHERE workflow_id = ? AND node IN ({marks})"""
CLOSE = """
UPDATE everbeat_workflow_tasks SET status = ?, error_code = ?, error_message = ?, result = ?, finished_at = ?
 WHERE workflow_id = ? AND node = ?"""
# Most tasks end in a result. Refuses a node that has ended before.
COMPLETE = """
UPDATE everbeat_workflow_tasks SET status = 'COMPLETED', finished_at = ?
 WHERE workflow_id = ? AND node IN ({marks}) AND status IN ('ENQUEUED', 'RUNNING')"""

# One row for all that are alike: the nodes of a fan wait for the same, and are the same task.
ALIKE = """deps, needed, deps_left, deps_ok, deps_failed, allow_failed, is_partial, condition, kind, takes, queue,
       task_name, exclusive_key"""
FOLLOWING = f"""
SELECT {ALIKE}, inputs, json_group_array(node)
  FROM (SELECT workflow_id, next, count(*) AS inputs FROM everbeat_workflow_edges
         WHERE workflow_id = ? AND node IN ({{marks}}) GROUP BY workflow_id, next) AS ended
  JOIN everbeat_workflow_tasks n ON n.workflow_id = ended.workflow_id AND n.node = ended.next
 WHERE status = 'PENDING' GROUP BY {ALIKE}, inputs"""
# The same for a single node, as in a chain and where a fan opens: each that waits for it has one edge from it.
FOLLOWING_ONE = f"""
SELECT {ALIKE}, 1, json_group_array(next)
  FROM everbeat_workflow_edges e JOIN everbeat_workflow_tasks n ON n.workflow_id = e.workflow_id AND n.node = e.next
 WHERE e.workflow_id = ? AND e.node IN ({{marks}}) AND status = 'PENDING' GROUP BY {ALIKE}"""
WAITING = f"""
SELECT {ALIKE}, 0, json_group_array(node)
  FROM everbeat_workflow_tasks WHERE workflow_id = ? AND node IN ({{marks}}) AND status = 'PENDING' GROUP BY {ALIKE}"""
COUNT_DOWN = """
UPDATE everbeat_workflow_tasks SET deps_left = ?, deps_ok = ?, deps_failed = ?, status = ?, started_at = ?
 WHERE workflow_id = ? AND node IN ({marks})"""

ANNOUNCED = {
    WorkflowStatus.COMPLETED: event.WORKFLOW_COMPLETED,
    WorkflowStatus.FAILED: event.WORKFLOW_FAILED,
    WorkflowStatus.PAUSED: event.WORKFLOW_PAUSED,
}


ONCE_AND_AGAIN = 2
"""A workflow ends once, and is told of twice at most: by what ended in it, and by who looks at all of it."""


@dataclass(frozen=True, slots=True)
class Upwards:
    """What the end of a nested workflow is for the one it is nested in."""

    workflow_id: str
    end: NodeEnd


def advance(tx: Transaction, ends: Ends, done: Done | None = None) -> None:
    """Until nothing follows any more. `done`: nodes whose tasks ran until now and have a result; RowRefused, at some
    time in this transaction, if they are not as they must be then."""
    waiting = {workflow_id: list(ended) for workflow_id, ended in ends.items()}
    to_go_on = {workflow_id for workflow_id, ended in ends.items() if not ended}  # also if something in it ends here
    completed = dict(done or {})
    waiting |= {workflow_id: [] for workflow_id in completed if workflow_id not in waiting}
    told = Counter[str]()
    while waiting:
        workflow_id, ended = waiting.popitem()
        is_wanted = workflow_id in to_go_on
        upwards = go_on(tx, workflow_id, ended, completed.pop(workflow_id, ()), look_for_all=is_wanted)
        if upwards is not None:
            told[workflow_id] += 1
            if told[workflow_id] > ONCE_AND_AGAIN:
                raise Unreadable(f"workflow {workflow_id} is nested in itself. Somebody wrote that by hand")
            waiting.setdefault(upwards.workflow_id, []).append(upwards.end)
            for other, nodes in completed.items():  # what ended above may have changed them: nothing is sure any more
                waiting[other] += [NodeEnd(node, DONE) for node in nodes]
            completed.clear()
    crash_point("advance.written")


def go_on(
    tx: Transaction, workflow_id: str, ended: Sequence[NodeEnd] = (), done: Sequence[int] = (), *,
    look_for_all: bool = False,
) -> Upwards | None:  # fmt: skip
    """One workflow, and what is nested in it as far as it is started here. Without ends, or if it is said, all of its
    nodes that may start are looked for."""
    flow = find(tx, workflow_id)
    if flow is None:
        return None
    wave, ready = list(ended), None if look_for_all or not (ended or done) else list[int]()
    if done:
        following = _count_down(tx, flow, _complete(tx, flow, sorted(done)))
        wave += following.ends
        if ready is not None:
            ready += following.ready
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
        ready = None
    return _upwards(tx, flow)


@dataclass(slots=True)
class Following:
    """What was decided about nodes that wait."""

    ready: list[int] = field(default_factory=list)
    """May start, and have not been enqueued."""
    ends: list[NodeEnd] = field(default_factory=list)
    """Of those that will never start."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Nodes that wait for the same, as they are counted, and how many of their inputs ended, completed and failed."""

    facts: Row
    counts: tuple[int, int, int]
    nodes: list[int]


def look_at(tx: Transaction, workflow_id: str, waiting: Sequence[int]) -> Following:
    """Decide anew about nodes that wait, as they are counted."""
    found = [Alike(row[:-2], (0, 0, 0), _nodes(row[-1])) for row in tx.among(WAITING, (workflow_id,), waiting)]
    return _decide(tx, workflow_id, found, may_start=False)


def _decide(tx: Transaction, workflow_id: str, waiting: Sequence[Alike], *, may_start: bool) -> Following:
    """Count these nodes down, and let those start that may. Plain ones are enqueued at once: should their workflow be
    paused in the same transaction, they are held with the others."""
    asked = {node for alike in waiting for node in nodes_asked(alike.facts[7])}
    results = _results(tx, workflow_id, asked) if asked else {}
    following = Following()
    plain: list[flow_ready.Plain] = []
    become: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for alike in waiting:
        deps, needed, left, ok, failed, allow_failed, is_partial, condition, kind, takes, *sent = alike.facts
        ended, completed, lost = alike.counts
        left, ok, failed = left - ended, ok + completed, failed + lost
        turn = turn_of(known(deps, needed, left, ok, failed, allow_failed, is_partial), condition, results)
        status, started_at = NodeStatus.PENDING, None
        if (
            turn.status is NodeStatus.READY
            and may_start
            and flow_ready.is_plain(kind, takes, allow_failed + is_partial)
        ):
            status, started_at = NodeStatus.ENQUEUED, tx.now
            plain.append((alike.nodes, *sent))
        elif turn.status is NodeStatus.READY:
            status = NodeStatus.READY
            following.ready += alike.nodes
        elif turn.status is not NodeStatus.PENDING:
            following.ends += [NodeEnd(node, turn) for node in alike.nodes]
        become[left, ok, failed, status.value, started_at] += alike.nodes
    for counted, nodes in become.items():
        tx.change_among(COUNT_DOWN, (*counted, workflow_id), nodes)
    flow_ready.add_tasks(tx, workflow_id, plain)
    return following


def known(deps: int, needed: int, left: int, ok: int, failed: int, allow_failed: int, is_partial: int) -> Waiting:
    """From a row."""
    return Waiting(
        deps=deps, needed=needed, left=left, ok=ok, failed=failed, allow_failed=bool(allow_failed),
        is_partial=bool(is_partial),
    )  # fmt: skip


def _complete(tx: Transaction, flow: FlowRow, done: Sequence[int]) -> Closed:
    tx.change_among(COMPLETE, (tx.now, flow.id), done, all_of_them=True)
    flow.nodes_left -= len(done)
    return {(1, 0): done}


def _close(tx: Transaction, flow: FlowRow, wave: Iterable[NodeEnd]) -> Closed:
    """Those that had not ended before. The first failure that nothing tolerates is that of the workflow, unless it was
    cancelled: then that is the reason of what is cancelled in it."""
    ends = {end.node: end for end in wave}
    closed: list[NodeEnd] = []
    unstarted: list[int] = []
    given_up: dict[str, Turn] = {}
    for node, status, name, tolerated, child_id in tx.among(STANDING, (flow.id,), list(ends)):
        if NodeStatus(status).is_terminal:
            continue
        end = _explained(flow, ends[node])
        closed.append(end)
        if end.turn.status is not NodeStatus.COMPLETED and status in (NodeStatus.PENDING, NodeStatus.READY):
            unstarted.append(node)
        if child_id is not None and end.turn.status is not NodeStatus.COMPLETED:
            given_up[child_id] = end.turn
        is_error = end.turn.status in (NodeStatus.FAILED, NodeStatus.CANCELLED) and not tolerated
        flow.fails_now |= is_error and not end.is_told
        if is_error and flow.error_node is None and flow.status is not WorkflowStatus.CANCELLED:
            flow.error_node, flow.error_code = name, text(end.turn.code)
            flow.error_message = text(end.turn.message)
    tx.soon(
        CLOSE,
        [
            (end.turn.status.value, text(end.turn.code), text(end.turn.message), end.result, tx.now, flow.id, end.node)
            for end in closed
        ],
    )
    flow_unbegun.give_up(tx, given_up)
    flow_revived.withdraw(tx, flow.id, unstarted)
    flow.nodes_left -= len(closed)
    ended: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for end in closed:
        is_ok = end.turn.status is NodeStatus.COMPLETED
        ended[int(is_ok), int(counts_as_failed(end.turn.status, end.turn.code))].append(end.node)
    return ended


def _explained(flow: FlowRow, end: NodeEnd) -> NodeEnd:
    is_with_it = flow.status is WorkflowStatus.CANCELLED and end.turn.status is NodeStatus.CANCELLED
    return NodeEnd(end.node, end_in_ended(flow.status, flow.error_message)) if is_with_it else end


def _count_down(tx: Transaction, flow: FlowRow, closed: Closed) -> Following:
    """Once for each node that waits, whatever the number of its inputs among these."""
    waiting = [
        Alike(row[:-2], (row[-2], row[-2] * ok, row[-2] * failed), _nodes(row[-1]))
        for (ok, failed), nodes in closed.items()
        for row in tx.among(following(nodes), (flow.id,), nodes)
    ]
    if not waiting:
        return Following()
    may_start = flow.status is WorkflowStatus.RUNNING and not (flow.fails_now and flow.on_error is OnError.PAUSE)
    return _decide(tx, flow.id, _each_once(waiting), may_start=may_start)


def following(ended: Sequence[int]) -> str:
    """What asks for those that wait for these."""
    return FOLLOWING_ONE if len(ended) == 1 else FOLLOWING


def _each_once(waiting: list[Alike]) -> list[Alike]:
    """A node of whose inputs some completed and some failed is found twice: count it down once, for all of them."""
    if len(waiting) == 1 or len({node for one in waiting for node in one.nodes}) == sum(len(w.nodes) for w in waiting):
        return waiting
    facts: dict[int, Row] = {}
    counts: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for one in waiting:
        for node in one.nodes:
            facts[node] = one.facts
            counts[node].append(one.counts)
    alike: defaultdict[tuple[Row, tuple[int, int, int]], list[int]] = defaultdict(list)
    for node, several in counts.items():
        ended, ok, failed = map(sum, zip(*several, strict=True))
        alike[facts[node], (ended, ok, failed)].append(node)
    return [Alike(*of, nodes) for of, nodes in alike.items()]


def _nodes(stored: str) -> list[int]:
    nodes: list[int] = msgspec.json.decode(stored)
    return sorted(nodes)


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
        required = values(tx, flow.id, nodes_in(flow.success))
    flow.status = state_of(
        Flow(
            status=before,
            on_error=flow.on_error,
            nodes_left=flow.nodes_left,
            has_error=flow.error_node is not None,
            is_stopped_by_error=flow.paused_by == BY_ERROR,
            required=None if required is None else [value.status for value in required.values()],
        )
    )
    if flow.status is WorkflowStatus.FAILED and before is not flow.status and required is not None:
        flow_blame.blame(tx, flow, required)
    save(tx, flow)
    if flow.status is not before:
        if flow.status is WorkflowStatus.PAUSED:
            flow_hold.hold_inside(tx, flow, by=BY_ERROR)
        announce(tx, flow)
    if flow.is_map and flow.fails_now:
        _pause_around(tx, flow)


def _pause_around(tx: Transaction, flow: FlowRow) -> None:
    """An element of a map has failed. For the workflow around the map that is the failure of one of its own nodes."""
    around = None if flow.parent_id is None else find(tx, flow.parent_id)
    if around is None or around.on_error is not OnError.PAUSE or around.status is not WorkflowStatus.RUNNING:
        return
    ((_, _, _, tolerated, _),) = tx.among(STANDING, (around.id,), [flow.parent_node])
    if tolerated:
        return
    around.status, around.paused_by = WorkflowStatus.PAUSED, BY_ERROR
    around.error_node, around.error_code, around.error_message = flow.error_node, flow.error_code, flow.error_message
    save(tx, around)
    flow_hold.hold_inside(tx, around, by=BY_ERROR)
    announce(tx, around)
    if flow.status is WorkflowStatus.RUNNING:
        flow.status, flow.paused_by = WorkflowStatus.PAUSED, BY_ERROR


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
    """A nested workflow that has ended, as the end of the node that it is. One may have completed without its output:
    its node has, too, and says why there is no result. That is a failure of those who take it (flow_ready.py)."""
    node = flow.parent_node if flow.parent_node is not None else -1
    if flow.status is WorkflowStatus.CANCELLED:
        return NodeEnd(node, end_in_ended(flow.status, flow.error_message))
    if flow.status is WorkflowStatus.FAILED:
        code, said = flow.error_code or WORKFLOW_FAILED, f"{flow.error_node}: {flow.error_message}"
        return NodeEnd(node, Turn(status=NodeStatus.FAILED, code=code, message=said), is_told=bool(flow.is_map))
    outputs = nodes_in(flow.outputs)
    found = values(tx, flow.id, outputs)
    if len(found) < len(set(outputs)):
        raise Unreadable(f"workflow {flow.id} has results of nodes that it does not have: {flow.outputs[:100]}")
    if len(outputs) == 1 and not flow.is_map and is_lost(found[outputs[0]]):
        cause = flow_blame.cause_of(tx, flow, found[outputs[0]])
        said = f"{cause.name}: {cause.message}"
        return NodeEnd(node, Turn(status=NodeStatus.COMPLETED, code=RESULT_NOT_AVAILABLE, message=said))
    results = {found[output].name: found[output].result or splice.HOLE for output in outputs}
    if flow.is_map:
        result = splice.as_list(list(results.values()))
    else:
        result = next(iter(results.values())) if len(results) == 1 else splice.as_object(results)
    if len(result) > flow.max_bytes:
        said = f"the results of its nodes take {len(result):,} bytes, the limit is {flow.max_bytes:,}"
        return NodeEnd(node, Turn(status=NodeStatus.FAILED, code="RESULT_TOO_LARGE", message=said))
    return NodeEnd(node, Turn(status=NodeStatus.COMPLETED), result)
