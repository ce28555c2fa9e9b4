"""What a person asks of a workflow: pause, resume, cancel, another run of what failed. All of it acts on what is nested
in it, too, in one transaction. Each is a named change of the table of states; one that does not fit changes nothing."""

from collections.abc import Iterator

from everbeat.decide.flow import end_in_ended
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.flow import (
    JOIN_NOT_MET,
    WORKFLOW_CANCELLED,
    WORKFLOW_SOURCES,
    NodeKind,
    WorkflowChange,
    WorkflowStatus,
)
from everbeat.model.order import Order
from everbeat.model.state import TaskStatus
from everbeat.store.messages import TaskFilter
from everbeat.store.transaction import RowRefused, Transaction
from everbeat.store.verbs import commanding, flow_ends, flow_hold, flow_reopen
from everbeat.store.verbs.flow_advance import advance
from everbeat.store.verbs.flow_over import is_over
from everbeat.store.verbs.flow_rows import FlowRow, Unreadable, chunks, find, save, tree
from everbeat.store.verbs.records import add_events, text

ANNOUNCED = {
    WorkflowChange.PAUSE: event.WORKFLOW_PAUSED,
    WorkflowChange.RESUME: event.WORKFLOW_RESUMED,
    WorkflowChange.CANCEL: event.WORKFLOW_CANCELLED,
    WorkflowChange.RETRY: event.WORKFLOW_RETRIED,
}

# The nodes of one workflow, and the unique index on the id of a task. Also of nodes that wait for another run.
TASKS_OF = """
SELECT t.seq FROM everbeat_workflow_tasks n JOIN everbeat_tasks t ON t.id = n.task_id
 WHERE n.workflow_id = ? AND t.status || '' IN ('PENDING', 'CLAIMED', 'RUNNING') ORDER BY t.seq"""
CANCEL_NODES = """
UPDATE everbeat_workflow_tasks SET status = 'CANCELLED', error_code = ?, error_message = ?, finished_at = ?
 WHERE workflow_id = ? AND status IN ('PENDING', 'READY')"""

# The primary key
FAILED = f"""
SELECT n.node, t.seq, t.status, n.kind, t.result IS NULL
  FROM everbeat_workflow_tasks n LEFT JOIN everbeat_tasks t ON t.id = n.task_id
 WHERE n.workflow_id = ? AND n.status IN ('FAILED', 'CANCELLED')
   AND coalesce(n.error_code, '') <> '{JOIN_NOT_MET}' ORDER BY n.node"""


def carry_out(tx: Transaction, change: WorkflowChange, workflow_id: str, *, actor: str) -> tuple[bool, set[str]]:
    """Whether it was done, and the workers that must hear of it."""
    flow_ends.lock(tx, [workflow_id])
    flow = find(tx, workflow_id)
    if flow is None or not _fits(tx, change, flow):
        return False, set()
    try:
        with tx.part():
            owners = _change(tx, change, flow, actor)
    except RowRefused as error:
        raise Unreadable(f"workflow {flow.id} is left as it is, because its rows make no sense: {error}") from error
    if owners is None:
        return False, set()
    add_events(tx, [Event(name=ANNOUNCED[change], facts={"workflow": flow.id, "name": flow.name, "actor": actor})])
    return True, owners


def _change(tx: Transaction, change: WorkflowChange, flow: FlowRow, actor: str) -> set[str] | None:
    """The workers that must hear of it; None if there was nothing to do."""
    match change:
        case WorkflowChange.PAUSE:
            _pause(tx, flow, actor)
        case WorkflowChange.RESUME:
            advance(tx, {released: [] for released in flow_hold.release_inside(tx, flow)})
        case WorkflowChange.CANCEL:
            return _cancel(tx, flow, actor)
        case WorkflowChange.RETRY:
            return set() if _retry(tx, flow, actor) else None
    return set()


def _fits(tx: Transaction, change: WorkflowChange, flow: FlowRow) -> bool:
    """A workflow that runs can be resumed, too, if something nested in it was paused by an error of its own. One
    inside of a paused one is resumed with that."""
    if change is WorkflowChange.RESUME and flow_hold.paused_around(tx, flow) is not None:
        return False
    if flow.status in WORKFLOW_SOURCES[change]:
        return True
    return change is WorkflowChange.RESUME and any(one.status is WorkflowStatus.PAUSED for one in tree(tx, flow))


def _pause(tx: Transaction, flow: FlowRow, actor: str) -> None:
    flow.status, flow.paused_by = WorkflowStatus.PAUSED, text(actor)
    save(tx, flow)
    flow_hold.hold_inside(tx, flow, by=actor)


def _cancel(tx: Transaction, flow: FlowRow, actor: str) -> set[str]:
    """What has not begun never will; what runs is asked to end, and keeps the outcome it comes to. Who asked for it is
    the reason of all."""
    owners: set[str] = set()
    said = text(f"the workflow {flow.name} was cancelled by {actor}")
    inside = [one for one in tree(tx, flow) if not one.status.is_terminal]
    for one in inside:
        one.status, one.paused_by = WorkflowStatus.CANCELLED, None
        one.error_node, one.error_code, one.error_message = None, WORKFLOW_CANCELLED, said
        one.nodes_left -= cancel_nodes(tx, one)
        save(tx, one)
        tx.done.add(one.id)
    for one in inside:
        seqs = [seq for (seq,) in tx.all(TASKS_OF, (one.id,))]
        for chunk in chunks(seqs):
            reason = f"its workflow {flow.id} was cancelled"
            _, asked = commanding.carry_out(tx, Order.CANCEL, TaskFilter(), chunk, actor=actor, reason=reason)
            owners |= asked
    advance(tx, {one.id: [] for one in inside})
    return owners


def cancel_nodes(tx: Transaction, flow: FlowRow) -> int:
    """Those of a workflow that has ended which have not begun; how many."""
    end = end_in_ended(flow.status, flow.error_message)
    return tx.run(CANCEL_NODES, (end.code, end.message, tx.now, flow.id))


def _retry(tx: Transaction, flow: FlowRow, actor: str) -> bool:
    """All of it is reopened before any of it starts: what failed may wait for something else that did."""
    again: dict[str, list[int]] = {}
    for one in reversed(tree(tx, flow)):
        for chunk in chunks(list(_failed(tx, one))):
            seqs = [seq for _, seq in chunk if seq is not None]
            said = f"another run of what failed in workflow {flow.id} was asked for"
            revived = set(commanding.revive(tx, seqs, actor=actor, reason=said)) if seqs else set()
            again.setdefault(one.id, []).extend(node for node, seq in chunk if seq is None or seq in revived)
    if not any(again.values()):
        return False
    flow_reopen.reopen(tx, again, resumed=flow.id)
    return True


def _failed(tx: Transaction, flow: FlowRow) -> Iterator[tuple[int, int | None]]:
    """Nodes that can run again, with the tasks that live again for it. One whose nested workflow failed is reopened by
    what is in it, one whose result was lost gets another task."""
    if is_over(tx, flow.id):
        return
    for node, seq, status, kind, is_without_result in tx.all(FAILED, (flow.id,)):
        if kind == NodeKind.WORKFLOW:
            continue
        if status != TaskStatus.COMPLETED:
            yield node, seq
        elif is_without_result:
            yield node, None
