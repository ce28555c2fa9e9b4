"""The arguments of claimed tasks that are nodes: results of others are put in where they belong, byte by byte.

What can not be put together is given to the task's process as no arguments at all, and fails there like any arguments
that do not fit: one damaged row must not keep others from being claimed.
"""

import json
from collections import defaultdict
from collections.abc import Sequence

from everbeat.decide import splice
from everbeat.model.flow import RESULT_NOT_AVAILABLE, Named, NodeStatus
from everbeat.model.task import Claim
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.flow_rows import VALUES, Value, among, referred_to, value_of

NOTHING = b""
# The primary keys
REFERENCES = """
SELECT n.node, n.refs, w.scope_id FROM everbeat_workflow_tasks n JOIN everbeat_workflows w ON w.id = n.workflow_id
 WHERE n.workflow_id = ? AND n.node IN ({marks}) AND n.refs IS NOT NULL"""


def complete(tx: Transaction, claims: Sequence[Claim]) -> None:
    """Those of plain tasks are complete, and cost nothing here."""
    by_workflow: defaultdict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        if claim.workflow_id is not None:
            by_workflow[claim.workflow_id].append(claim)
    for workflow_id, mine in by_workflow.items():
        _complete(tx, workflow_id, mine)


def _complete(tx: Transaction, workflow_id: str, claims: Sequence[Claim]) -> None:
    stored = list(among(tx, REFERENCES, (workflow_id,), [claim.node for claim in claims]))
    if not stored:
        return
    references = {node: _loaded(refs) for node, refs, _ in stored}
    wanted = {named for places in references.values() for _, named in places or ()}
    found = referred_to(tx, VALUES, stored[0][2], wanted)
    known = {named: _as_json(value_of(row)) for named, row in found}
    for claim in claims:
        if claim.node in references:
            claim.args = _put_together(claim.args, references[claim.node], known)


def _put_together(args: bytes, places: Sequence[splice.Place] | None, known: dict[Named, bytes]) -> bytes:
    if places is None:
        return NOTHING
    try:
        return splice.put_in(args, places, known)
    except ValueError:
        return NOTHING


def _loaded(stored: str) -> Sequence[splice.Place] | None:
    try:
        return splice.load(stored)
    except ValueError:
        return None


def _as_json(value: Value) -> bytes:
    """Its result, or its failure as a value: only a node with `allow_failed` is started then."""
    if value.status is NodeStatus.COMPLETED and value.result is not None:
        return value.result
    failure = {"node": value.name, "status": value.status.value, "error_code": value.code or RESULT_NOT_AVAILABLE,
               "message": value.message or "", "task_id": value.task_id}  # fmt: skip
    return json.dumps(failure).encode()
