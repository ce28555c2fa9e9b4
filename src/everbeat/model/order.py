"""What a person may ask for, about one task or a million: which tasks each order fits, and what it does to them.

The changes of state are those of the transition table; `DISCARD`, `ERASE` and `PURGE` leave the state alone.
"""

from enum import StrEnum

from everbeat.model.state import TERMINAL, Change, TaskStatus, sources

FAILED_BY_HAND = "FAILED_BY_HAND"
"""The error code of a task that a person failed."""
REQUEUED_BY_HAND = "REQUEUED_BY_HAND"
"""The outcome of a run that a person took from its owner."""


class Order(StrEnum):
    CANCEL = "cancel"  # it will not run; one that runs is told to stop
    RETRY = "retry"  # another run for what has ended without a result
    RELEASE = "release"  # the same, for what is in quarantine only
    DISCARD = "discard"  # out of the quarantine, without another run
    REQUEUE = "requeue"  # away from its owner, back into the queue
    FAIL = "fail"  # failed, wherever it is
    ERASE = "erase"  # arguments, result and errors blanked, the row kept
    PURGE = "purge"  # removed, with all that was recorded about it

    @property
    def change(self) -> Change | None:
        """The change of state, if it is one."""
        return _CHANGES.get(self)

    @property
    def statuses(self) -> tuple[TaskStatus, ...]:
        """The tasks it fits."""
        return _STATUSES[self]

    @property
    def is_for_quarantine(self) -> bool:
        return self in (Order.RELEASE, Order.DISCARD)


_CHANGES = {
    Order.CANCEL: Change.CANCEL,
    Order.RETRY: Change.REVIVE,
    Order.RELEASE: Change.REVIVE,
    Order.REQUEUE: Change.REQUEUE,
    Order.FAIL: Change.GIVE_UP,
}
_ENDED = tuple(status for status in TaskStatus if status in TERMINAL)
_STATUSES = {
    Order.CANCEL: sources(Change.CANCEL),
    Order.RETRY: sources(Change.REVIVE),
    Order.RELEASE: (TaskStatus.FAILED,),
    Order.DISCARD: (TaskStatus.FAILED,),
    Order.REQUEUE: sources(Change.REQUEUE),
    Order.FAIL: sources(Change.GIVE_UP),
    Order.ERASE: _ENDED,
    Order.PURGE: _ENDED,
}
