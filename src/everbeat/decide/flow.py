"""Decide what becomes of a node whose inputs have changed, and how a workflow ends.

Pure: counters and results in, a value out. The one path of every node: `turn_of` says whether it waits, may start, is
skipped or has failed; nobody else does, whether its input ended a moment ago or recovery counts again.

A join is one number, how many of the inputs must complete: all of them, one (`any`), or `min_success` (`quorum`). It is
met when so many have, and can not be met any more when too few are left. The last two are partial joins, also where
they need all the inputs there are: the failure of one that only such joins wait for is theirs to judge. It is no
failure of the workflow, but a partial join that can not be met is.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everbeat.model.flow import (
    CONDITION_NOT_MET,
    JOIN_NOT_MET,
    RESULT_NOT_AVAILABLE,
    TASK_CANCELLED,
    TASK_EXPIRED,
    UPSTREAM_FAILED,
    WORKFLOW_CANCELLED,
    NodeStatus,
    OnError,
    WorkflowStatus,
)
from everbeat.model.state import TaskStatus

WORKER_CRASHED = "WORKER_CRASHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is known of a node that is PENDING."""

    deps: int
    needed: int
    left: int
    """Inputs that have not ended."""
    ok: int
    failed: int
    """Inputs that failed, or were skipped because something before them failed."""
    allow_failed: bool = False
    is_partial: bool = False
    """`any` or `quorum`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What becomes of it. PENDING: it waits on."""

    status: NodeStatus
    code: str | None = None
    message: str | None = None


WAIT, START, DONE = (Turn(status=status) for status in (NodeStatus.PENDING, NodeStatus.READY, NodeStatus.COMPLETED))


def turn_of(node: Waiting, condition: str | None = None, results: Mapping[int, bytes | None] | None = None) -> Turn:
    """`results`: of the nodes that the condition asks for and that have ended; None for one that has no result."""
    met = node.ok >= node.needed
    if not met and not (node.allow_failed and node.left == 0):
        return WAIT if node.allow_failed or node.ok + node.left >= node.needed else _in_vain(node)
    if condition is None:
        return START
    return _by_condition(condition, results or {})


def _in_vain(node: Waiting) -> Turn:
    """Too few inputs are left to meet its need. If none failed, all that are missing were skipped, and so is this node.
    Whether one failed is known only when all have ended; before that the answer would depend on their order."""
    if not node.failed and node.left:
        return WAIT
    if not node.failed:
        return Turn(status=NodeStatus.SKIPPED, code=CONDITION_NOT_MET, message="what it waits for was skipped")
    if not node.is_partial:
        return Turn(status=NodeStatus.SKIPPED, code=UPSTREAM_FAILED, message="what it waits for failed")
    said = f"{node.ok} of {node.deps} inputs completed and {node.left} are left, {node.needed} are needed"
    return Turn(status=NodeStatus.FAILED, code=JOIN_NOT_MET, message=said)


def nodes_asked(condition: str | None) -> list[int]:
    """The nodes whose results a condition is about. ValueError if it is none."""
    return [test["node"] for tests in _read(condition).values() for test in tests] if condition else []


def _by_condition(condition: str, results: Mapping[int, bytes | None]) -> Turn:
    asked = _read(condition)
    if any(test["node"] not in results for tests in asked.values() for test in tests):
        return WAIT
    if not all(_holds(test, results) for test in asked["when"]):
        return Turn(status=NodeStatus.SKIPPED, code=CONDITION_NOT_MET, message="its condition does not hold")
    if any(_holds(test, results) for test in asked["unless"]):
        return Turn(
            status=NodeStatus.SKIPPED, code=CONDITION_NOT_MET, message="its condition says that it is not needed"
        )
    return START


def _read(condition: str) -> dict[str, list[dict[str, Any]]]:
    try:
        said = json.loads(condition)
        read = {word: list(said.get(word, ())) for word in ("when", "unless")}
        is_sound = all(
            isinstance(test["node"], int) and isinstance(test["in"], list) for t in read.values() for test in t
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a condition is not understood: {condition[:200]}") from error
    if not is_sound:
        raise ValueError(f"a condition is not understood: {condition[:200]}")
    return read


def _holds(test: Mapping[str, Any], results: Mapping[int, bytes | None]) -> bool:
    raw = results[test["node"]]
    if raw is None:
        return False
    value = json.loads(raw)
    return any(is_same(value, wanted) for wanted in test["in"])


def is_same(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1, and 1.0 is 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return bool(one == other)


# -- the end of a task ------------------------------------------------------------------------------------------------


def end_of_task(status: TaskStatus, *, has_result: bool, code: str | None, message: str | None) -> Turn:
    """What the end of a task means for its node. What is missing in its row is made up for, and said."""
    match status:
        case TaskStatus.COMPLETED if has_result:
            return DONE
        case TaskStatus.COMPLETED:
            said = "its task has completed, and its result is not there"
            return Turn(status=NodeStatus.FAILED, code=RESULT_NOT_AVAILABLE, message=said)
        case TaskStatus.CANCELLED:
            return Turn(status=NodeStatus.CANCELLED, code=code or TASK_CANCELLED, message=message or "cancelled")
        case TaskStatus.EXPIRED:
            said = "its task was not started while it was good"
            return Turn(status=NodeStatus.FAILED, code=code or TASK_EXPIRED, message=message or said)
    said = "its task failed, and nothing says why"
    return Turn(status=NodeStatus.FAILED, code=code or WORKER_CRASHED, message=message or said)


def end_in_ended(status: WorkflowStatus, message: str | None) -> Turn:
    """What had not ended in a workflow that has. `message`: what it says of its own end."""
    if status is WorkflowStatus.CANCELLED:
        said = message or "the workflow was cancelled"
        return Turn(status=NodeStatus.CANCELLED, code=WORKFLOW_CANCELLED, message=said)
    said = f"the workflow was {status} before it ended"
    return Turn(status=NodeStatus.CANCELLED, code=TASK_CANCELLED, message=said)


def counts_as_failed(status: NodeStatus, code: str | None) -> bool:
    """Whether those that wait for it lack it because something went wrong."""
    return status in (NodeStatus.FAILED, NodeStatus.CANCELLED) or (
        status is NodeStatus.SKIPPED and code == UPSTREAM_FAILED
    )


# -- the end of a workflow --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What is known of a workflow some of whose nodes have ended."""

    status: WorkflowStatus
    on_error: OnError
    nodes_left: int
    has_error: bool
    """A node failed that nothing tolerates."""
    is_stopped_by_error: bool = False
    """It is PAUSED because a node failed; a person decides."""
    required: Sequence[NodeStatus] | None = None
    """What became of the nodes that must complete; None: of the workflow no more is asked than no error."""


def state_of(flow: Flow) -> WorkflowStatus:
    """The state it belongs into now."""
    if flow.status is WorkflowStatus.PENDING or flow.status.is_terminal:
        return flow.status
    if flow.is_stopped_by_error:
        return WorkflowStatus.PAUSED
    if flow.nodes_left:
        return flow.status
    if flow.required is not None:
        is_success = all(status is NodeStatus.COMPLETED for status in flow.required)
    else:
        is_success = flow.on_error is OnError.CONTINUE or not flow.has_error
    return WorkflowStatus.COMPLETED if is_success else WorkflowStatus.FAILED
