"""The transition table, walked: every state, every change, through the verbs of the store.

What the table allows ends where it says; what it does not allow changes nothing, whoever asks.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.words import (
    abandoned,
    an_error,
    carry_out,
    completed,
    enqueue,
    facts_of,
    failed,
    handed_back,
    recover,
    register,
    requeue,
    retried,
    settle,
    start,
    succeeded,
)

from everbeat.decide.room import Room
from everbeat.model.order import Order
from everbeat.model.recovery import Verdict
from everbeat.model.state import OWNED, REVOKES, TRANSITIONS, Change, TaskStatus, sources, target
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Flush

ROOT = Path(__file__).parents[2]
WITHOUT_A_VERB = {Change.EXPIRE}
OUT_OF_REACH = {TaskStatus.EXPIRED}
FACTS = ("status", "fence", "attempt", "crash_count", "lost_count", "worker_id", "run_at", "finished_at", "quarantined")

PAIRS = [
    pytest.param(state, change, id=f"{state}-{change}")
    for state in TaskStatus
    for change in Change
    if state not in OUT_OF_REACH and change not in WITHOUT_A_VERB
]
LEGAL = [pair for pair in PAIRS if tuple(pair.values) in TRANSITIONS]


def take(store: Store, *, alone: bool) -> Claim | None:
    """A task of the async kind is launched into the shared process, or claimed until its own is ready."""
    room = Room(frozenset(), frozenset({"later"}), None, async_free=int(not alone), own_free=int(alone))
    return next(iter(store.flush(Flush(worker_id="w1", room=room)).claims), None)


def a_task_in(store: Store, state: TaskStatus, *, alone: bool) -> Claim:
    """A task in that state with its newest claim, which is superseded where the task is not owned. It was taken from an
    owner twice before, so the newest claim of a PENDING task is the one whose late result would be adopted."""
    register(store, "w1")
    enqueue(store, id="task-1", name="later")
    for _ in range(2):
        newest = take(store, alone=False) or take(store, alone=True)
        assert newest is not None
        recover(store, newest, Verdict(change=Change.RECOVER, billed=False, solo=alone))
        superseded = newest
    if state is TaskStatus.PENDING:
        return superseded
    newest = take(store, alone=alone)
    assert newest is not None
    if alone and state is not TaskStatus.CLAIMED:
        start(store, newest)
    ends = {TaskStatus.COMPLETED: completed(), TaskStatus.FAILED: failed(), TaskStatus.CANCELLED: cancelled()}
    if state in ends:
        settle(store, newest, ends[state])
    return newest


def cancelled() -> Verdict:
    return Verdict(change=Change.CANCEL, reason="asked for")


def do(store: Store, change: Change, state: TaskStatus, claim: Claim) -> None:
    old = Claim(**{name: getattr(claim, name) for name in Claim.__slots__} | {"fence": claim.fence - 1})
    verbs: dict[Change, Callable[[], object]] = {
        Change.CLAIM: lambda: take(store, alone=True),
        Change.LAUNCH: lambda: take(store, alone=False),
        Change.START: lambda: start(store, claim),
        # The late result of a newer claim is an adoption; that of an older one is a completion that comes too late.
        Change.COMPLETE: lambda: settle(store, old if state is TaskStatus.PENDING else claim, completed()),
        Change.ADOPT: lambda: settle(store, claim, completed(), outcome=succeeded()),
        Change.FAIL: lambda: settle(store, claim, failed()),
        Change.RETRY: lambda: settle(store, claim, retried()),
        Change.HAND_BACK: lambda: settle(store, claim, handed_back()),
        Change.RECOVER: lambda: requeue(store, claim),
        Change.ABANDON: lambda: recover(store, claim, abandoned()),
        Change.CANCEL: lambda: (
            settle(store, claim, cancelled()) if state in OWNED else store.cancel("task-1", actor="me")
        ),
        Change.REVIVE: lambda: carry_out(store, Order.RETRY, "task-1"),
        Change.REQUEUE: lambda: carry_out(store, Order.REQUEUE, "task-1"),
        Change.GIVE_UP: lambda: carry_out(store, Order.FAIL, "task-1"),
        Change.ACCEPT: lambda: (
            settle(store, old, completed(), outcome=succeeded()),
            store.accept("task-1", actor="me"),
        ),
    }
    verbs[change]()


def is_for_a_task_alone(state: TaskStatus, change: Change) -> bool:
    return change in (Change.CLAIM, Change.START) or state is TaskStatus.CLAIMED


@pytest.mark.parametrize(("state", "change"), PAIRS)
def test_a_change_leads_where_the_table_says_or_nowhere(store: Store, state: TaskStatus, change: Change) -> None:
    claim = a_task_in(store, state, alone=is_for_a_task_alone(state, change))
    before = facts_of(store, "task-1", *FACTS)
    assert before[0] is state

    do(store, change, state, claim)

    if change is Change.ADOPT and state is TaskStatus.RUNNING:
        assert facts_of(store, "task-1", "status") == (TaskStatus.COMPLETED,)  # in time, so it is no adoption
    elif (state, change) in TRANSITIONS:
        assert facts_of(store, "task-1", "status") == (TRANSITIONS[state, change],)
    else:
        assert facts_of(store, "task-1", *FACTS) == before


@pytest.mark.parametrize(("state", "change"), LEGAL)
def test_the_fence_grows_by_one_with_every_change_of_ownership(store: Store, state: TaskStatus, change: Change) -> None:
    claim = a_task_in(store, state, alone=is_for_a_task_alone(state, change))
    (before,) = facts_of(store, "task-1", "fence")

    do(store, change, state, claim)

    changes_hands = change in REVOKES or change in (Change.CLAIM, Change.LAUNCH)
    assert facts_of(store, "task-1", "fence") == (before + changes_hands,)


def test_a_verdict_that_does_not_end_an_ownership_is_an_error_and_changes_nothing(store: Store) -> None:
    claim = a_task_in(store, TaskStatus.RUNNING, alone=False)

    with pytest.raises(ValueError, match="revive does not end an ownership"):
        settle(store, claim, Verdict(change=Change.REVIVE, error=an_error()))

    assert facts_of(store, "task-1", "status") == (TaskStatus.RUNNING,)


def test_every_change_leads_to_one_state_only() -> None:
    for (_, change), state in TRANSITIONS.items():
        assert target(change) is state


def test_nothing_automatic_leaves_a_terminal_state() -> None:
    by_a_person = {Change.REVIVE, Change.ACCEPT}

    assert {change for (state, change) in TRANSITIONS if state.is_terminal} == by_a_person


def test_only_an_owner_s_code_completes_or_fails_a_task() -> None:
    for change in (Change.COMPLETE, Change.FAIL, Change.RETRY):
        assert sources(change) == (TaskStatus.RUNNING,)


def test_code_that_may_have_run_is_never_handed_out_twice_without_a_revoke() -> None:
    """Whatever makes an owned task PENDING takes it from its owner."""
    for (state, change), after in TRANSITIONS.items():
        if state in OWNED and after is TaskStatus.PENDING:
            assert change in REVOKES


def test_the_page_about_states_is_current() -> None:
    """Otherwise run: python tools/states.py"""
    spec = importlib.util.spec_from_file_location("states", ROOT / "tools" / "states.py")
    assert spec is not None
    assert spec.loader is not None
    states = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(states)

    assert (ROOT / "docs" / "states.md").read_text() == states.page()
