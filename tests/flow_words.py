"""The words in which the tests of workflows speak: graphs by the names of their nodes, run by hand on a real store."""

from collections.abc import Mapping
from typing import Any

from tests.words import a_room, completed, failed

from everbeat.model.flow import ITEM, NewNode, NewWorkflow, NodeKind, NodeStatus, OnError, WorkflowStatus
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush

OK, FAIL, CANCEL = "ok", "fail", "cancel"


def graph(
    id: str = "flow", *, on_error: OnError = OnError.FAIL, outputs: tuple[int, ...] | None = None,
    success: tuple[int, ...] | None = None, nodes: Mapping[str, Mapping[str, Any]] | None = None, **after: str,
) -> NewWorkflow:  # fmt: skip
    """`graph(a="", b="a", c="a b")`: c waits for a and b. `nodes`: more facts of single nodes."""
    names = {name: number for number, name in enumerate(after)}
    waited_for: dict[int, list[str]] = {}
    made: dict[str, dict[str, Any]] = {}
    for name, given in after.items():
        inputs = tuple(sorted(names[one] for one in given.split()))
        for one in inputs:
            waited_for.setdefault(one, []).append(name)
        facts: dict[str, Any] = {
            "name": name, "kind": NodeKind.TASK, "task_id": f"{id}:{name}", "task_name": "add", "queue": "default",
            "priority": 100, "max_attempts": 1, "args": b"{}", "inputs": inputs, "needed": len(inputs),
        }  # fmt: skip
        facts |= dict((nodes or {}).get(name, {}))
        made[name] = {"is_partial": facts["needed"] < len(inputs)} | facts
    partial = {name for name, facts in made.items() if facts["is_partial"]}
    for name, number in names.items():
        waiters = waited_for.get(number, [])
        made[name]["is_tolerated"] = bool(waiters) and partial.issuperset(waiters)
    ends = tuple(number for number in names.values() if number not in waited_for)
    chosen = [NewNode(**facts) for facts in made.values()]
    return NewWorkflow(id=id, name=id, on_error=on_error, nodes=chosen, outputs=outputs or ends, success=success)


def begin(store: Store, *flows: NewWorkflow) -> str:
    """Each of them nested in the one before, as its node of that name, if it has one."""
    assert store.start_workflow(flows).created
    return flows[0].id


def diamond(**facts: Any) -> NewWorkflow:
    return graph(a="", b="a", c="a", d="b c", **facts)


def mapped(**facts: Any) -> NewWorkflow:
    """a results in a list, m runs over it, with the result of k; then z."""
    over = {"kind": NodeKind.MAP, "task_id": None, "child_id": "inside:", "over": 0, "args": b'{"x":null,"k":null}',
            "references": ((5, ITEM), (14, 1))}  # fmt: skip
    last = {"args": b'{"all":null}', "references": ((7, 2),)}
    return graph(a="", k="", m="a k", z="m", nodes={"m": over, "z": last}, **facts)


def states(store: Store, id: str = "flow") -> dict[str, NodeStatus]:
    return {node.name: node.status for node in store.workflow_nodes(id)}


def state(store: Store, id: str = "flow") -> WorkflowStatus:
    info = store.workflow(id)
    assert info is not None
    return info.status


def take(store: Store, worker: str = "w1", places: int = 50) -> dict[str, Claim]:
    """Claim what is ready; by the names of the nodes."""
    claims = store.flush(Flush(worker_id=worker, room=a_room(places))).claims
    return {claim.id.rpartition(":")[2]: claim for claim in claims}


def verdict_of(outcome: str | bytes | Verdict) -> Verdict:
    if isinstance(outcome, Verdict):
        return outcome
    if isinstance(outcome, bytes):
        return completed(outcome)
    return {OK: completed(), FAIL: failed(), CANCEL: Verdict(change=Change.CANCEL, reason="cancelled")}[outcome]


def end(store: Store, *claims: Claim, outcome: str | bytes | Verdict = OK) -> None:
    """In one flush."""
    endings = [Ending(claim=claim, verdict=verdict_of(outcome)) for claim in claims]
    store.flush(Flush(worker_id=claims[0].worker_id or "", endings=endings))


def play(store: Store, outcomes: Mapping[str, str | bytes | Verdict] | None = None) -> list[str]:
    """Run all that is ready, one after the other, until nothing is; the names in the order in which they ran."""
    ran: list[str] = []
    while taken := take(store, places=1):
        ((name, claim),) = taken.items()
        ran.append(name)
        end(store, claim, outcome=(outcomes or {}).get(name, OK))
    return ran
