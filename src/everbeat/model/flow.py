"""Workflows, as data: the states of a workflow and of its nodes, and what is known of both as they go on.

The schema takes its CHECKs from the states. How workflows and nodes go on by themselves is decided in decide/flow.py;
`WORKFLOW_SOURCES` says what a person may ask of a workflow, and when. A node that is a task says nothing of its own
while its task lives: what that does is written once, in the task. So it stays ENQUEUED in its row, and is shown as
RUNNING while its task runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType


class WorkflowStatus(StrEnum):
    """Where a workflow stands. COMPLETED, FAILED and CANCELLED are final (`is_terminal`)."""

    PENDING = "PENDING"  # a nested one whose node is not ready yet
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Only `retry_failed()` brings it back."""
        return self in WORKFLOW_ENDS


class NodeStatus(StrEnum):
    """Where a node of a workflow stands. The last four are final (`is_terminal`)."""

    PENDING = "PENDING"  # waits for others
    READY = "READY"  # may start; its workflow is paused, or it is about to be enqueued
    ENQUEUED = "ENQUEUED"  # its task is in the store
    RUNNING = "RUNNING"  # a nested workflow, or the tasks of a map
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Only a retry of its workflow changes it."""
        return self in NODE_ENDS


WORKFLOW_ENDS = frozenset({WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED})
NODE_ENDS = frozenset({NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED, NodeStatus.CANCELLED})


class OnError(StrEnum):
    """What a failed node means for its workflow."""

    FAIL = "FAIL"  # what does not depend on it still runs; then the workflow has failed
    PAUSE = "PAUSE"  # nothing new starts until somebody resumes or retries
    CONTINUE = "CONTINUE"  # what does not depend on it still runs; the workflow completes all the same


class NodeKind(StrEnum):
    TASK = "task"
    MAP = "map"
    WORKFLOW = "workflow"


class WorkflowChange(StrEnum):
    """What a person asks for."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"  # its failed nodes run again


_W = WorkflowStatus
WORKFLOW_SOURCES: Mapping[WorkflowChange, tuple[WorkflowStatus, ...]] = MappingProxyType(
    {
        WorkflowChange.PAUSE: (_W.RUNNING,),
        WorkflowChange.RESUME: (_W.PAUSED,),
        WorkflowChange.CANCEL: (_W.PENDING, _W.RUNNING, _W.PAUSED),
        WorkflowChange.RETRY: (_W.RUNNING, _W.PAUSED, _W.FAILED, _W.COMPLETED),
    }
)
"""RETRY of a COMPLETED one: with `on_error=CONTINUE` a workflow may complete with failed nodes."""


# -- why a node has no result -----------------------------------------------------------------------------------------

UPSTREAM_FAILED = "UPSTREAM_FAILED"
CONDITION_NOT_MET = "CONDITION_NOT_MET"
JOIN_NOT_MET = "JOIN_NOT_MET"
TASK_CANCELLED = "TASK_CANCELLED"
TASK_EXPIRED = "TASK_EXPIRED"
RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
NOT_ENDED = "NOT_ENDED"
WORKFLOW_FAILED = "WORKFLOW_FAILED"
WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"

BY_ERROR = "error"
"""In `paused_by`, where it was no person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """What a node with `allow_failed` receives in place of a result that does not exist."""

    node: str
    status: str
    """FAILED, SKIPPED or CANCELLED; PENDING if it had not ended when a partial join was met without it."""
    error_code: str
    message: str
    task_id: str | None = None


# -- on the way into the store ----------------------------------------------------------------------------------------

ITEM = -1
"""In place of a node in a reference: the element that a map runs over."""

Named = tuple[int, int]
"""A node by its number, and how many workflows further out it is: 0 in the same one."""
Reference = tuple[int, int] | tuple[int, int, int]
"""Where in the arguments, in bytes, the result of which node belongs; the third number is as in `Named`, 0 if it is not
given. `null` stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    name: str
    kind: NodeKind
    task_id: str | None = None
    child_id: str | None = None
    task_name: str | None = None
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    policy: str | None = None
    exclusive_key: str | None = None
    good_until: int | None = None
    delay_us: int = 0
    args: bytes | None = None
    references: tuple[Reference, ...] = ()
    over: int | None = None
    """The node whose result a map runs over."""
    inputs: tuple[int, ...] = ()
    """The nodes it waits for."""
    needed: int = 0
    """How many of them must complete."""
    is_partial: bool = False
    """By `any` or `quorum`: if so many can not, it is a failure of its own, and theirs is none of the workflow."""
    allow_failed: bool = False
    condition: str | None = None
    is_tolerated: bool = False
    """All that wait for it can do without it: its failure is not one of the workflow."""
    shape: str | None = None
    """How to read its result, as JSON: of a nested workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorkflow:
    id: str
    name: str
    on_error: OnError
    nodes: Sequence[NewNode]
    outputs: tuple[int, ...]
    success: tuple[int, ...] | None = None
    digest: str = ""
    max_bytes: int = 16 * 1024 * 1024
    """Of the arguments and of the result of a node."""
    parent_id: str | None = None
    parent_node: int | None = None


# -- looked at --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node as people see it."""

    node: int
    name: str
    kind: str
    status: NodeStatus
    task_id: str | None
    task_name: str | None
    workflow_id: str | None
    """Of a nested workflow or a map: that of its own nodes."""
    after: list[str]
    """The names of the nodes it waits for."""
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    duration: timedelta | None
    error_code: str | None
    error_message: str | None
    waiting_for: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowInfo:
    """A workflow as people see it."""

    id: str
    name: str
    status: WorkflowStatus
    on_error: OnError
    parent_id: str | None
    node_count: int
    nodes_left: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error_node: str | None
    error_code: str | None
    error_message: str | None
    stuck: str | None
    """Why recovery could not mend it."""
    paused_by: str | None
    """A person, or BY_ERROR: a node failed."""
    waiting_for: str | None = None
    """One that is nested in it, at any depth, and is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """The end of a node, as handles need it."""

    name: str
    status: NodeStatus
    task_id: str | None
    task_name: str | None
    kind: NodeKind
    shape: str | None
    result: bytes | None
    error_code: str | None
    error_message: str | None
    attempt: int
    exception_type: str | None = None
    traceback: str | None = None
    workflow_id: str | None = None
    """The workflow that the node is, if it is one."""
