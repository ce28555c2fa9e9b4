"""The end of a task is the end of its node, and its workflow goes on in the same transaction (P11).

Whoever ends tasks asks for the lock of their workflows first and calls `follow` when it has written; plain tasks are
known by a column of their row and pay nothing. One lock for a whole tree of workflows, its root: below it nobody else
writes, so what was read is true until the commit, whichever database it is. (PROTOCOL 35 would have each advance read
without locks and check a version. Those who finish inputs of one join would wait for each other at its row all the
same, and repeat their work besides.) Roots are locked in the order of their ids, and before any task: no two wait for
each other in a ring.

A workflow whose rows make no sense does not keep the outcome of a task from being stored: it is left as it is, and
told; `flow_mend` tries again. What the code of a sensitive task said is not copied (PROTOCOL 41).
"""

from collections.abc import Iterable, Sequence

from everbeat.decide.flow import end_of_task
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.store.transaction import RowRefused, Transaction
from everbeat.store.verbs import flow_args
from everbeat.store.verbs.flow_advance import Done, Ends, advance, following
from everbeat.store.verbs.flow_rows import FLOW, NodeEnd
from everbeat.store.verbs.looking import shown_message
from everbeat.store.verbs.records import add_events

Roots = dict[str, str]
"""Of each workflow."""
SEVERAL = 4

# The primary key, twice.
LOCK = """
SELECT w.id, r.id FROM everbeat_workflows w JOIN everbeat_workflows r ON r.id = w.root_id
 WHERE w.id IN ({marks}) ORDER BY r.id /*pg: FOR UPDATE OF r */"""
WORKFLOWS_OF = """
SELECT DISTINCT workflow_id FROM everbeat_tasks WHERE seq IN ({marks}) AND workflow_id IS NOT NULL"""
ENDED = """
SELECT workflow_id, node, status, CASE WHEN result IS NULL THEN 0 ELSE 1 END, error_code, error_message, policy
  FROM everbeat_tasks
 WHERE seq IN ({marks}) AND workflow_id IS NOT NULL AND status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')"""


def lock(tx: Transaction, workflow_ids: Iterable[str | None]) -> Roots:
    """Let nobody else change these until the end of the transaction. Values that are no text are ids of no workflow."""
    wanted = {workflow_id for workflow_id in workflow_ids if isinstance(workflow_id, str)}
    if not wanted:
        return {}
    return dict(tx.among(LOCK, (), sorted(wanted)))


def announce(tx: Transaction, claims: Sequence[Claim]) -> bool:
    """Announce the questions that will be asked when these have results. Of several workflows only the lock: what ends
    in one may change another. Returns whether what will be claimed depends on what follows now, as in a chain. Where
    several nodes have ended at once it does not, most of the time: others like them are ready already, and take the
    results that these took."""
    ended = [claim for claim in claims if claim.workflow_id is not None]
    workflow_ids = sorted({claim.workflow_id for claim in ended if claim.workflow_id is not None})
    if workflow_ids:
        tx.expect((LOCK, (tuple(workflow_ids),)))
    if len(workflow_ids) != 1:
        return bool(workflow_ids)
    nodes = [claim.node for claim in ended if claim.node is not None]
    tx.expect((FLOW, (workflow_ids[0],)), (following(nodes), (workflow_ids[0], tuple(nodes))))
    if len(nodes) < SEVERAL:
        return True
    tx.expect(*flow_args.questions(workflow_ids[0], ended))
    return False


def lock_of(tx: Transaction, seqs: Sequence[int]) -> Roots:
    return lock(tx, [workflow_id for (workflow_id,) in tx.among(WORKFLOWS_OF, (), seqs)])


def follow_results(tx: Transaction, roots: Roots, claims: Iterable[Claim]) -> None:
    """The common case: these tasks ran until now and have a result. RowRefused if a workflow makes no sense: then this
    transaction is to be undone, and done row by row."""
    done: Done = {}
    for claim in claims:
        if claim.workflow_id in roots and claim.node is not None:
            done.setdefault(claim.workflow_id, []).append(claim.node)
    try:
        advance(tx, {}, done)
    except ValueError as error:
        raise RowRefused(str(error)) from error


def follow(tx: Transaction, roots: Roots, seqs: Sequence[int]) -> None:
    """End the nodes of those of these tasks that have ended, and do all that follows from it."""
    if not roots:
        return
    trees: dict[str, Ends] = {}
    for workflow_id, node, status, has_result, code, message, policy in tx.among(ENDED, (), seqs):
        if workflow_id in roots and node is not None:
            shown = message and shown_message(code, message, policy)
            turn = end_of_task(TaskStatus(status), has_result=bool(has_result), code=code, message=shown)
            trees.setdefault(roots[workflow_id], {}).setdefault(workflow_id, []).append(NodeEnd(node, turn))
    for root, ends in trees.items():
        try:
            with tx.part():
                advance(tx, ends)
        except RowRefused as error:
            tell_torn(tx, root, error)


def tell_torn(tx: Transaction, root: str, error: RowRefused) -> None:
    """What was to be changed in it makes no sense, and was left as it is."""
    add_events(tx, [Event(name=event.WORKFLOW_TORN, facts={"workflow": root, "reason": str(error)})])
