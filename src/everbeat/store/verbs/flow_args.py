"""The arguments of claimed tasks that are nodes: results of others are put in where they belong, byte by byte.

Results that come in the same flush are at hand, or were read in it (flow_ready.py); the others are read. What can not
be put together is given to the task's process as no arguments at all, and fails there like any arguments that do not
fit: one damaged row must not keep others from being claimed.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from everbeat.decide import splice
from everbeat.model.flow import Named, NodeStatus
from everbeat.model.recovery import Settled, Settlement
from everbeat.model.state import Change
from everbeat.model.task import Claim
from everbeat.store.messages import Ending
from everbeat.store.transaction import Question, Row, Transaction
from everbeat.store.verbs.flow_given import as_value
from everbeat.store.verbs.flow_rows import VALUES, referred_to

# The primary key, and that of the task. What others take, most of the time.
TAKEN = """
SELECT n.node, coalesce(n.result, t.result)
  FROM everbeat_workflow_tasks n LEFT JOIN everbeat_tasks t ON t.id = n.task_id
 WHERE n.workflow_id = ? AND n.node IN ({marks})
   AND n.status = 'COMPLETED' AND coalesce(n.result, t.result) IS NOT NULL"""

NOTHING = b""
STATUSES = frozenset(NodeStatus)
"""A node that a hand has given another one has no result."""


def complete(
    tx: Transaction, claims: Sequence[Claim], endings: Sequence[Ending], settlements: Sequence[Settlement]
) -> None:
    """Put results into the arguments of nodes. Those of plain tasks are complete already. `endings` were settled just
    now."""
    by_workflow: defaultdict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        if claim.refs is not None and claim.workflow_id is not None:
            by_workflow[claim.workflow_id].append(claim)
    for workflow_id, mine in by_workflow.items():
        _complete(tx, workflow_id, mine, [*zip(endings, settlements, strict=True)])


def questions(workflow_id: str, ended: Sequence[Claim]) -> Iterator[Question]:
    """If all of these took the same results, ask for these again: what is claimed next probably takes them, too."""
    (refs, *others) = {claim.refs for claim in ended}
    if others or refs is None or len(refs) > splice.SHORT:
        return
    named = {named for _, named in _loaded(refs) or ()}
    if named and not any(outwards for _, outwards in named):
        yield TAKEN, (workflow_id, tuple(sorted(node for node, _ in named)))


def _complete(
    tx: Transaction, workflow_id: str, claims: Sequence[Claim], settled: Sequence[tuple[Ending, Settlement]]
) -> None:
    alike: defaultdict[str | None, list[Claim]] = defaultdict(list)  # all nodes of a fan take the same
    for claim in claims:
        alike[claim.refs].append(claim)
    places = {refs: _loaded(refs) for refs in alike}
    wanted = {named for some in places.values() for _, named in some or ()}
    known = dict(tx.results.get(workflow_id, {}))
    known |= _at_hand(workflow_id, wanted - known.keys(), settled)
    known |= {named: bytes(row[1]) for named, row in referred_to(tx, TAKEN, workflow_id, wanted - known.keys())}
    for named, row in referred_to(tx, VALUES, workflow_id, wanted - known.keys()):
        if row[2] in STATUSES:
            known[named] = _as_json(row)
    for refs, mine in alike.items():
        _put_together(mine, places[refs], known)


def _at_hand(workflow_id: str, wanted: Set[Named], settled: Sequence[tuple[Ending, Settlement]]) -> dict[Named, bytes]:
    """Of what is wanted, the results that were stored just now."""
    nodes = {node for node, outwards in wanted if not outwards}
    return {
        (claim.node, 0): verdict.result
        for (claim, verdict, *_), settlement in settled
        if claim.node in nodes
        and claim.workflow_id == workflow_id
        and verdict.change is Change.COMPLETE
        and verdict.result is not None
        and isinstance(settlement, Settled)
    }


def _put_together(claims: Sequence[Claim], places: Sequence[splice.Place] | None, known: dict[Named, bytes]) -> None:
    """Arguments of calls that take the same."""
    if places is None:
        whole: list[bytes | None] = [None] * len(claims)
    else:
        whole = splice.put_in_each([claim.args for claim in claims], places, known)
    for claim, args in zip(claims, whole, strict=True):
        claim.args = NOTHING if args is None else args


def _loaded(stored: str | None) -> Sequence[splice.Place] | None:
    try:
        return splice.load(stored)
    except ValueError:
        return None


def _as_json(row: Row) -> bytes:
    """Its result as JSON, or its failure: a node around this workflow may have failed, and the workflow was started all
    the same."""
    _, name, status, task_id, result, code, message = row
    if status == NodeStatus.COMPLETED and result is not None:
        return bytes(result)
    return as_value(name, status, task_id, code, message)
