"""The life of a task, as data.

`TRANSITIONS` is the only place that says which change is legal. The store takes its target states from it, the
schema its CHECK, the contract tests their cases and the documentation its diagram.

Terminal is terminal for automation: only `REVIVE` and `ACCEPT`, both asked for by a person, leave a terminal state.
`REQUEUE` and `GIVE_UP` are a person's too: they take a task from its owner, who may be alive and running it.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class TaskStatus(StrEnum):
    """Where a task is in its life. The value equals the name everywhere: tables, JSON, command line, metrics."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED})
OWNED = frozenset({TaskStatus.CLAIMED, TaskStatus.RUNNING})


class Change(StrEnum):
    """What may happen to a task. Each is a verb of the store."""

    CLAIM = "claim"  # a worker owns it; its process is not ready yet
    START = "start"  # its code may run from here on
    LAUNCH = "launch"  # claim and start in one write, when a process is waiting for it
    COMPLETE = "complete"
    FAIL = "fail"  # its code failed and no attempt is left
    RETRY = "retry"  # its code failed and the policy allows another run
    HAND_BACK = "hand_back"  # the owner returns it: no process has seen it
    RECOVER = "recover"  # the runner died and the task may run again
    ABANDON = "abandon"  # the runner died and the task may not run again
    CANCEL = "cancel"
    EXPIRE = "expire"
    ADOPT = "adopt"  # a revoked owner's result arrived before anyone claimed the task again
    REVIVE = "revive"  # a person asks for another run of a finished task
    ACCEPT = "accept"  # a person takes a result that came too late
    REQUEUE = "requeue"  # a person takes it from its owner: it runs again, whatever becomes of the present run
    GIVE_UP = "give_up"  # a person fails it, wherever it is; or no worker knows it


_P, _C, _R = TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING

TRANSITIONS: Mapping[tuple[TaskStatus, Change], TaskStatus] = MappingProxyType(
    {
        (_P, Change.CLAIM): _C,
        (_P, Change.LAUNCH): _R,
        (_C, Change.START): _R,
        (_R, Change.COMPLETE): TaskStatus.COMPLETED,
        (_R, Change.FAIL): TaskStatus.FAILED,
        (_R, Change.RETRY): _P,
        (_C, Change.HAND_BACK): _P,
        (_R, Change.HAND_BACK): _P,
        (_C, Change.RECOVER): _P,
        (_R, Change.RECOVER): _P,
        (_C, Change.ABANDON): TaskStatus.FAILED,
        (_R, Change.ABANDON): TaskStatus.FAILED,
        (_P, Change.CANCEL): TaskStatus.CANCELLED,
        (_C, Change.CANCEL): TaskStatus.CANCELLED,
        (_R, Change.CANCEL): TaskStatus.CANCELLED,
        (_P, Change.EXPIRE): TaskStatus.EXPIRED,
        (_P, Change.ADOPT): TaskStatus.COMPLETED,
        (TaskStatus.FAILED, Change.REVIVE): _P,
        (TaskStatus.CANCELLED, Change.REVIVE): _P,
        (TaskStatus.EXPIRED, Change.REVIVE): _P,
        (_P, Change.ACCEPT): TaskStatus.COMPLETED,
        (TaskStatus.FAILED, Change.ACCEPT): TaskStatus.COMPLETED,
        (TaskStatus.CANCELLED, Change.ACCEPT): TaskStatus.COMPLETED,
        (_C, Change.REQUEUE): _P,
        (_R, Change.REQUEUE): _P,
        (_P, Change.GIVE_UP): TaskStatus.FAILED,
        (_C, Change.GIVE_UP): TaskStatus.FAILED,
        (_R, Change.GIVE_UP): TaskStatus.FAILED,
    }
)

REVOKES = frozenset(
    {Change.RETRY, Change.HAND_BACK, Change.RECOVER, Change.ABANDON, Change.CANCEL, Change.EXPIRE, Change.ADOPT,
     Change.REVIVE, Change.ACCEPT, Change.REQUEUE, Change.GIVE_UP}
)  # fmt: skip
"""Changes after which a former owner's fence must no longer match (PROTOCOL 1). With claims, these bump the fence."""


def target(change: Change) -> TaskStatus:
    """Where a change leads. Every change leads to exactly one state."""
    return _TARGETS[change]


def sources(change: Change) -> tuple[TaskStatus, ...]:
    """The states a change may start from."""
    return tuple(state for state, named in TRANSITIONS if named is change)


_TARGETS = {change: state for (_, change), state in TRANSITIONS.items()}
