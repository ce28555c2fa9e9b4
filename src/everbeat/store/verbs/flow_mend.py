"""Find workflows that something tore, and let them go on by the usual path (seeds 000 and 002).

We tear none: an outcome and all that follows from it commit together. A person's SQL, a restored table, a row that was
refused may. Found are nodes whose task has ended or is gone, nodes that may start and were not enqueued, counters that
are not what the nodes say, nested workflows that ended or never began and whose node was not told, and workflows all of
whose nodes have ended. Nothing is decided here: what is found is given to `advance`, nodes before workflows.

Looking is a read. Only a tree in which something was found is written, in a transaction of its own that looks again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from everbeat.decide.flow import Turn, end_of_task, nodes_asked, turn_of
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.flow import BY_ERROR, RESULT_NOT_AVAILABLE, NodeKind, NodeStatus, WorkflowStatus
from everbeat.model.state import TaskStatus
from everbeat.store.transaction import Transaction
from everbeat.store.verbs import flow_reopen, flow_revived
from everbeat.store.verbs.flow_advance import ending_of, known
from everbeat.store.verbs.flow_ends import lock
from everbeat.store.verbs.flow_orders import cancel_nodes
from everbeat.store.verbs.flow_rows import FlowRow, NodeEnd, Unreadable, find, save, tree, values
from everbeat.store.verbs.looking import shown_message
from everbeat.store.verbs.records import add_events, text

ACTOR = "system/recovery"

# everbeat_workflows_live
LIVE = """
SELECT id FROM everbeat_workflows
 WHERE parent_id IS NULL AND (nodes_left > 0 OR finished_at IS NULL) AND id > ? AND (stuck IS NULL OR ? = 1)
 ORDER BY id LIMIT ?"""

# A walk through the nodes of one workflow, as those below; the unique index on the id of a task.
OUT_OF_STEP = """
SELECT n.node, n.kind, t.status, CASE WHEN t.result IS NULL THEN 0 ELSE 1 END, t.error_code, t.error_message,
       n.child_id, n.policy
  FROM everbeat_workflow_tasks n LEFT JOIN everbeat_tasks t ON t.id = n.task_id
 WHERE n.workflow_id = ?
   AND ((n.status IN ('ENQUEUED', 'RUNNING') AND (n.kind <> 'task' OR t.id IS NULL))
        OR (n.status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING')
            AND t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')))"""
WAITS = """
SELECT 1 FROM everbeat_workflow_tasks WHERE workflow_id = ? AND status IN ('PENDING', 'READY') LIMIT 1"""
READY = "SELECT 1 FROM everbeat_workflow_tasks WHERE workflow_id = ? AND status = 'READY' LIMIT 1"
BEGIN_AGAIN = """
UPDATE everbeat_workflow_tasks SET status = 'READY' WHERE workflow_id = ? AND node = ? AND status = 'RUNNING'"""
WAITING = """
SELECT node, deps, needed, deps_left, deps_ok, deps_failed, allow_failed, is_partial, condition
  FROM everbeat_workflow_tasks WHERE workflow_id = ? AND status = 'PENDING'"""

STUCK = "UPDATE everbeat_workflows SET stuck = ? WHERE id = ?"


@dataclass(slots=True)
class Tear:
    """What is wrong with one workflow."""

    flow: FlowRow
    ends: list[NodeEnd] = field(default_factory=list)
    unbegun: list[int] = field(default_factory=list)
    """Nodes that should be running a workflow which is not."""
    words: list[str] = field(default_factory=list)


def candidates(tx: Transaction, *, after: str, limit: int, all_of_them: bool) -> list[str]:
    """The next roots that have not ended. Those that could not be mended before only if all are wanted."""
    return [root for (root,) in tx.all(LIVE, (after, int(all_of_them), limit))]


def wrong_with(tx: Transaction, root_id: str) -> str | None:
    """What is torn in it, for people; None if nothing is. ValueError if its rows can not be understood."""
    root = find(tx, root_id)
    return None if root is None else _said(root, list(_tears(tx, root)))


def mend(tx: Transaction, root_id: str) -> str | None:
    """What was wrong with it; None: nothing is any more. Raises what the database or the decisions do not take."""
    lock(tx, [root_id])
    root = find(tx, root_id)
    tears = [] if root is None else list(_tears(tx, root))
    if root is None or not tears:
        return None
    for tear in reversed(tears):  # what is inside before what it is inside of
        flow = find(tx, tear.flow.id)
        if flow is None:
            continue
        if flow.status.is_terminal:
            cancel_nodes(tx, flow)
            flow_revived.withdraw_all(tx, flow.id)
        tx.many(BEGIN_AGAIN, [(flow.id, node) for node in tear.unbegun])
        ended = {end.node for end in tear.ends}
        waiting = [node for node in flow_reopen.recount(tx, flow) if node not in ended]
        save(tx, flow)
        flow_reopen.look_again(tx, flow.id, waiting, tear.ends)
    said = _said(root, tears)
    if _found(list(_tears(tx, find(tx, root_id) or root))) >= _found(tears):
        raise Unreadable(f"whatever is done about it, it stays as it is: {said}")
    tx.run(STUCK, (None, root.id))
    facts = {"workflow": root.id, "name": root.name, "actor": ACTOR, "reason": said}
    add_events(tx, [Event(name=event.WORKFLOW_MENDED, facts=facts)])
    return said


def _found(tears: Sequence[Tear]) -> set[tuple[str, str]]:
    return {(tear.flow.id, word) for tear in tears for word in tear.words}


def set_aside(tx: Transaction, root_id: str, error: str) -> None:
    """It can not be mended: it is left as it is, shown, and not tried again unless a person asks for it."""
    root = tx.one("SELECT name, stuck FROM everbeat_workflows WHERE id = ?", (root_id,))
    if root is not None and root[1] is None:
        tx.run(STUCK, (text(error), root_id))
        facts = {"workflow": root_id, "name": root[0], "actor": ACTOR, "reason": error}
        add_events(tx, [Event(name=event.WORKFLOW_STUCK, facts=facts)])


def _said(root: FlowRow, tears: Sequence[Tear]) -> str | None:
    words = (
        word if tear.flow.id == root.id else f"in {tear.flow.id}: {word}" for tear in tears for word in tear.words[:10]
    )
    return "; ".join(words)[:2000] or None


def _tears(tx: Transaction, root: FlowRow) -> Iterator[Tear]:
    flows = {flow.id: flow for flow in tree(tx, root)}
    for flow in flows.values():
        if flow.status is not WorkflowStatus.PENDING:
            tear = _tear(tx, flow, flows)
            if tear.words:
                yield tear


def _tear(tx: Transaction, flow: FlowRow, flows: dict[str, FlowRow]) -> Tear:
    tear = Tear(flow)
    for node, kind, status, has_result, code, message, child_id, policy in tx.all(OUT_OF_STEP, (flow.id,)):
        if kind != NodeKind.TASK:
            _look_inside(tx, tear, node, flows.get(child_id))
            continue
        if status is None:
            said = "its task is gone, and nobody knows whether it ran"
            turn = Turn(status=NodeStatus.FAILED, code=RESULT_NOT_AVAILABLE, message=said)
        else:
            shown = shown_message(code, message, policy)
            turn = end_of_task(TaskStatus(status), has_result=bool(has_result), code=code, message=shown)
        tear.ends.append(NodeEnd(node, turn))
        tear.words.append(f"node {node} was not told that its task is {status or 'gone'}")
    if flow.status is WorkflowStatus.RUNNING and tx.one(READY, (flow.id,)):
        tear.words.append("nodes that may start were not enqueued")
    wrong, _ = flow_reopen.miscounted(tx, flow.id)
    if flow.status.is_terminal:
        if tx.one(WAITS, (flow.id,)):
            tear.words.append("nodes wait in it although it has ended")
    elif wrong:
        tear.words.append(f"the inputs of {len(wrong)} nodes were miscounted")
    elif _could_go_on(tx, flow):
        tear.words.append("nodes whose inputs have ended were not decided about")
    left = flow_reopen.nodes_left(tx, flow.id)
    if left != flow.nodes_left:
        tear.words.append(f"{left} nodes are left, and not {flow.nodes_left}")
    elif not left and not flow.status.is_terminal and flow.paused_by != BY_ERROR:
        tear.words.append("all nodes have ended, and it has not")
    return tear


def _look_inside(tx: Transaction, tear: Tear, node: int, child: FlowRow | None) -> None:
    if child is None or child.status is WorkflowStatus.PENDING:
        tear.unbegun.append(node)
        tear.words.append(f"node {node} runs a workflow that was not begun")
    elif child.status.is_terminal and not flow_reopen.nodes_left(tx, child.id):
        tear.ends.append(ending_of(tx, child))
        tear.words.append(f"node {node} was not told that its workflow is {child.status}")


def _could_go_on(tx: Transaction, flow: FlowRow) -> bool:
    for row in tx.all(WAITING, (flow.id,)):
        _, *facts, condition = row
        waiting = known(*facts)
        asked = values(tx, flow.id, nodes_asked(condition)) if condition and waiting.left < waiting.deps else {}
        results = {node: value.result for node, value in asked.items() if value.status.is_terminal}
        if turn_of(waiting, condition, results).status is not NodeStatus.PENDING:
            return True
    return False
