"""Rules of the protocol, each taken away. The simulation must notice every one of them.

Each weakens the code of this process, for the rest of its life: `python -m tests.sim --mutate NAME` is the switch.
"""

from collections.abc import Callable
from dataclasses import replace

from everbeat.decide.recover import recovery_for
from everbeat.model.recovery import Cause, Orphan, RecoveryPolicy, Verdict
from everbeat.run import cases
from everbeat.run.books import Books
from everbeat.run.heartbeat import Heartbeat
from everbeat.store.verbs import owning


def fence_not_bumped_on_revoke() -> None:
    """PROTOCOL 1."""
    owning.REVOKES = frozenset()  # type: ignore[attr-defined]


def settle_without_the_fence() -> None:
    """PROTOCOL 1."""
    fenced = "seq = ? AND fence = ? AND worker_id = ?"
    assert fenced in owning.COMPLETE
    owning.COMPLETE = owning.COMPLETE.replace(fenced, "seq = ? AND 0 < ? AND '' < ?")


def crashes_billed_for_losses() -> None:
    """PROTOCOL 5."""

    def billed(orphan: Orphan, recovery: RecoveryPolicy, *, jitter: float) -> Verdict:
        verdict = recovery_for(orphan, recovery, jitter=jitter)
        return replace(verdict, crashes=1, losses=0) if orphan.cause is Cause.LOST else verdict

    cases.recovery_for = billed  # type: ignore[attr-defined]


def strangers_never_returned() -> None:
    """PROTOCOL 7, 9: neither by whoever asks after a lost answer, nor by the heartbeat. One alone is not missed."""
    Books.give_back_unknown = lambda self, owned: setattr(self, "are_in_doubt", False)  # type: ignore[method-assign]
    Heartbeat._return_strangers = lambda self, strangers: None  # type: ignore[method-assign]


def running_after_dispatch() -> None:
    """PROTOCOL 19."""
    assert "status = 'RUNNING'" in owning.LAUNCH
    owning.LAUNCH = owning.LAUNCH.replace("status = 'RUNNING'", "status = 'CLAIMED'")


MUTATIONS: dict[str, Callable[[], None]] = {
    mutation.__name__: mutation
    for mutation in (
        fence_not_bumped_on_revoke, settle_without_the_fence, crashes_billed_for_losses,
        strangers_never_returned, running_after_dispatch,
    )
}  # fmt: skip
