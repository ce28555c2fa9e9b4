"""Rows of workflows that somebody wrote by hand and that make no sense: told, left alone, and in nobody's way.

What ended in them is stored all the same; other tasks and workflows go on; recovery ends.
"""

from contextlib import suppress

import pytest
from tests.contract.test_flow_mending import by_hand, recovered
from tests.contract.test_flows import mapped, nested
from tests.flow_words import begin, end, graph, play, state, take
from tests.words import a_room, completed, enqueue, register, status_of

from everbeat.errors import EverbeatError
from everbeat.model import event
from everbeat.model.flow import WorkflowChange, WorkflowStatus
from everbeat.model.state import TaskStatus
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush
from everbeat.store.transaction import RowRefused

RUNNING, PAUSED, CANCELLED = WorkflowStatus.RUNNING, WorkflowStatus.PAUSED, WorkflowStatus.CANCELLED
BECOMES = {WorkflowChange.PAUSE: PAUSED, WorkflowChange.CANCEL: CANCELLED}


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def settled(store: Store, *claims: Claim) -> None:
    """As a worker does it: if it is refused, once more row by row."""
    endings = [Ending(claim=claim, verdict=completed(b"[1,2]")) for claim in claims]
    flush = Flush(worker_id="w1", endings=endings, room=a_room(0))
    try:
        store.flush(flush)
    except RowRefused:
        store.flush(Flush(worker_id="w1", endings=endings, room=a_room(0), row_by_row=True))


def torn(store: Store) -> set[str]:
    told = (event.WORKFLOW_TORN, event.WORKFLOW_STUCK)
    return {one.facts["workflow"] for one in store.events() if one.name in told}


def spoiled(store: Store, spoil: str, last: str) -> Claim:
    """A nested workflow whose row is spoiled before its last task ends; that task."""
    begin(store, *nested())
    end(store, take(store)["a"])
    end(store, take(store)["b"])
    by_hand(store, spoil)
    return take(store)[last]


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE everbeat_workflows SET outputs = '[99]' WHERE id = 'inner'",
        "UPDATE everbeat_workflows SET parent_id = id, parent_node = 0 WHERE id = 'inner'",
    ],
)
def test_the_end_of_a_nested_workflow_that_makes_no_sense_harms_nobody(store: Store, spoil: str) -> None:
    last = spoiled(store, spoil, "c")
    beside = enqueue(store)
    (other,) = (claim for claim in take(store).values() if claim.id == beside)

    settled(store, last, other)

    assert status_of(store, last.id) is TaskStatus.COMPLETED
    assert status_of(store, beside) is TaskStatus.COMPLETED
    assert "flow" in torn(store)
    recovered(store)  # it ends
    begin(store, graph("sound", a="", b="a"))
    assert play(store) == ["a", "b"]
    assert state(store, "sound") is WorkflowStatus.COMPLETED


def test_a_map_whose_arguments_are_gone_harms_nobody(store: Store) -> None:
    begin(store, mapped())
    taken = take(store)
    end(store, taken["k"])
    by_hand(store, "DELETE FROM everbeat_workflow_calls WHERE node = 2")

    settled(store, taken["a"])

    assert status_of(store, "flow:a") is TaskStatus.COMPLETED
    assert "flow" in torn(store)
    recovered(store)


def test_a_reference_further_out_than_there_are_workflows_is_no_reference(store: Store) -> None:
    begin(store, graph(a=""))
    by_hand(store, "UPDATE everbeat_tasks SET refs = '[[1, 0, 1000000000]]' WHERE id = 'flow:a'")

    assert take(store)["a"].args == b""


def test_a_person_can_pause_and_cancel_around_a_workflow_that_is_nested_in_itself(store: Store) -> None:
    spoiled(store, "UPDATE everbeat_workflows SET parent_id = id WHERE id = 'inner'", "c")

    for change in (WorkflowChange.PAUSE, WorkflowChange.RESUME, WorkflowChange.CANCEL):
        for workflow_id in ("inner", "flow"):
            with suppress(EverbeatError, RowRefused):  # told, and not for ever
                store.change_workflow(change, workflow_id, actor="me")

    assert state(store) is WorkflowStatus.CANCELLED


@pytest.mark.parametrize("change", [WorkflowChange.PAUSE, WorkflowChange.CANCEL])
@pytest.mark.parametrize(
    "spoil",
    ["UPDATE everbeat_workflows SET nodes_left = -9223372036854775808", "UPDATE everbeat_workflows SET success = '{'"],
)
def test_what_a_person_asks_of_a_workflow_that_makes_no_sense_is_done_or_refused_with_a_clear_word(
    store: Store, change: WorkflowChange, spoil: str
) -> None:
    begin(store, graph(a="", b="a"))
    by_hand(store, spoil)
    said = ""
    try:
        store.change_workflow(change, "flow", actor="me")
    except EverbeatError as refusal:
        said = str(refusal)

    assert not said or said.startswith("workflow flow is left as it is, because its rows make no sense: ")
    assert state(store) is (RUNNING if said else BECOMES[change])


@pytest.mark.parametrize("outputs", ["{", "[true]", "[-1]", "[99999999999999999999]"])
def test_results_of_a_workflow_that_makes_no_sense_are_refused_with_a_clear_word(store: Store, outputs: str) -> None:
    begin(store, graph(a=""))
    by_hand(store, f"UPDATE everbeat_workflows SET outputs = '{outputs}'")

    with pytest.raises(EverbeatError, match="a list of nodes is not understood"):
        store.workflow_results("flow", outputs_only=True)


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE everbeat_workflows SET root_id = 'nobody' WHERE id = 'inner'",
        "UPDATE everbeat_workflows SET parent_id = 'nobody' WHERE id = 'inner'",
    ],
)
def test_a_workflow_that_stays_torn_whatever_is_done_is_mended_once_and_then_left_alone(
    store: Store, spoil: str
) -> None:
    spoiled(store, spoil, "c")

    looks = [store.mend_workflows() for _ in range(3)]

    assert [list(look.stuck) for look in looks] == [["flow"], [], []]
    assert [list(look.mended) for look in looks] == [[], [], []]
    info = store.workflow("flow")
    assert info is not None
    assert info.stuck is not None
    assert "it stays as it is: node 1 runs a workflow that was not begun" in info.stuck
