"""Which node is the reason. A workflow that asks for certain nodes (`success`) fails by one of these, or by what kept
it from starting: failures of others, which it does without, are not named.
"""

from collections import defaultdict
from collections.abc import Mapping

from everbeat.decide.flow import counts_as_failed
from everbeat.model.flow import UPSTREAM_FAILED, NodeStatus
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.flow_rows import FlowRow, Value, values
from everbeat.store.verbs.records import text

# A walk through the edges of one workflow, once when it fails: those that lead from what has no result because of a
# failure.
FAILED_INPUTS = """
SELECT e.next, e.node FROM everbeat_workflow_edges e
  JOIN everbeat_workflow_tasks n ON n.workflow_id = e.workflow_id AND n.node = e.node
 WHERE e.workflow_id = ?
   AND (n.status IN ('FAILED', 'CANCELLED') OR (n.status = 'SKIPPED' AND n.error_code = 'UPSTREAM_FAILED'))"""


def blame(tx: Transaction, flow: FlowRow, required: Mapping[int, Value]) -> None:
    """The first of these that has not completed."""
    missing = [value for _, value in sorted(required.items()) if value.status is not NodeStatus.COMPLETED]
    if not missing:
        return
    cause = cause_of(tx, flow, missing[0])
    said = cause.message
    if cause.status is NodeStatus.SKIPPED:
        said = f"it must complete, and was skipped: {cause.message}"
    flow.error_node, flow.error_code, flow.error_message = cause.name, text(cause.code), text(said)


def cause_of(tx: Transaction, flow: FlowRow, node: Value) -> Value:
    """Of one that was skipped because of a failure: what failed."""
    if node.status is not NodeStatus.SKIPPED or node.code != UPSTREAM_FAILED:
        return node
    failed_inputs = defaultdict[int, set[int]](set)
    for number, before in tx.all(FAILED_INPUTS, (flow.id,)):
        failed_inputs[number].add(before)
    seen, wave = set[int](), [node.node]
    while wave:
        inputs = set[int]().union(*(failed_inputs[number] for number in wave)) - seen
        found = [
            one for _, one in sorted(values(tx, flow.id, inputs).items()) if counts_as_failed(one.status, one.code)
        ]
        for one in found:
            if one.status is not NodeStatus.SKIPPED:
                return one
        seen |= inputs
        wave = [one.node for one in found]
    return node
