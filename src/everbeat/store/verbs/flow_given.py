"""What a node is given for inputs that have no result. It is decided once, when its task becomes ready, and stored with
it: every run of the task has the same arguments, whatever ends or is retried later.

With `allow_failed` each input has a value: its result, its failure, or that it had not ended. Without it, a partial
join takes the results that are there: other inputs are left out of the lists in its arguments.
"""

import json
from collections.abc import Sequence

from everbeat.decide import splice
from everbeat.model.flow import NOT_ENDED, RESULT_NOT_AVAILABLE, NodeStatus
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs.flow_rows import referred_to

# The primary key, all of them.
CALLS = """
SELECT c.node, c.args, c.refs, n.allow_failed
  FROM everbeat_workflow_calls c JOIN everbeat_workflow_tasks n ON n.workflow_id = c.workflow_id AND n.node = c.node
 WHERE c.workflow_id = ? AND c.node IN ({marks})"""
WITHOUT_RESULT = """
SELECT node, name, status, task_id, error_code, error_message FROM everbeat_workflow_tasks
 WHERE workflow_id = ? AND node IN ({marks})
   AND (status <> 'COMPLETED' OR (kind = 'workflow' AND result IS NULL))"""
GIVE = """
UPDATE everbeat_tasks SET args = ?, refs = ?
 WHERE id = (SELECT task_id FROM everbeat_workflow_tasks WHERE workflow_id = ? AND node = ?) AND status = 'PENDING'"""


def give(tx: Transaction, workflow_id: str, nodes: Sequence[int]) -> None:
    """These nodes have become tasks in this transaction. ValueError if what they refer to makes no sense."""
    calls = [
        (node, args, splice.load(refs), allow) for node, args, refs, allow in tx.among(CALLS, (workflow_id,), nodes)
    ]
    wanted = {named for _, _, places, _ in calls for _, named in places}
    absent = {named: as_value(*row[1:]) for named, row in referred_to(tx, WITHOUT_RESULT, workflow_id, wanted)}
    given: list[Row] = []
    for node, args, places, allow_failed in calls:
        if any(named in absent for _, named in places):
            put = splice.put_some_in if allow_failed else splice.leave_out
            whole, left = put(args, places, absent)
            given.append((whole, splice.dump([(at, *named) for at, named in left]), workflow_id, node))
    tx.many(GIVE, given)


def as_value(name: str, status: str, task_id: str | None, code: str | None, message: str | None) -> bytes:
    """A `NodeFailure`, as JSON."""
    if not NodeStatus(status).is_terminal:
        status, code, message = NodeStatus.PENDING, NOT_ENDED, "it had not ended"
    if status == NodeStatus.COMPLETED:  # a nested workflow, without its output
        status = NodeStatus.FAILED
    failure = {"node": name, "status": status, "error_code": code or RESULT_NOT_AVAILABLE, "message": message or "",
               "task_id": task_id}  # fmt: skip
    return json.dumps(failure).encode()
