"""on_error=PAUSE and maps: an element that fails is a node that fails; nothing new starts, in the map or around it."""

from dataclasses import replace

import pytest
from tests.flow_words import FAIL, begin, end, mapped, play, state, states, take
from tests.words import carry_out, register

from everbeat.model import event
from everbeat.model.flow import NewWorkflow, NodeStatus, OnError, WorkflowChange, WorkflowStatus
from everbeat.model.order import Order
from everbeat.model.task import Claim
from everbeat.store.interface import Store

N, W = NodeStatus, WorkflowStatus


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def change(store: Store, what: WorkflowChange) -> bool:
    return store.change_workflow(what, "flow", actor="me")


def elements_of(store: Store, flow: NewWorkflow) -> list[Claim]:
    """The first two of three elements of the map in it, claimed."""
    begin(store, flow)
    taken = take(store)
    end(store, taken["a"], outcome=b"[1,2,3]")
    end(store, taken["k"])
    return list(take(store, places=2).values())


def test_an_element_of_a_map_that_fails_pauses_the_workflow_around_it_at_once(store: Store) -> None:
    first, second = elements_of(store, mapped(on_error=OnError.PAUSE))
    end(store, first, outcome=FAIL)

    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node, info.error_code) == (W.PAUSED, "m[0]", "UNHANDLED_EXCEPTION")
    assert (state(store, "inside:"), take(store)) == (W.PAUSED, {})
    assert [one.name for one in store.events() if one.name == event.WORKFLOW_PAUSED] == [event.WORKFLOW_PAUSED]
    end(store, second)
    assert (state(store), take(store)) == (W.PAUSED, {})


def test_a_resume_lets_the_other_elements_run_and_the_map_that_fails_by_them_does_not_pause_again(store: Store) -> None:
    first, second = elements_of(store, mapped(on_error=OnError.PAUSE))
    end(store, first, outcome=FAIL)
    end(store, second)

    assert change(store, WorkflowChange.RESUME)

    assert play(store) == [".2"]
    assert (state(store), states(store)["m"], states(store)["z"]) == (W.FAILED, N.FAILED, N.SKIPPED)


def test_every_element_that_fails_pauses_also_the_last_one(store: Store) -> None:
    first, second = elements_of(store, mapped(on_error=OnError.PAUSE))
    end(store, first, outcome=FAIL)
    change(store, WorkflowChange.RESUME)
    end(store, second, outcome=FAIL)
    assert state(store) is W.PAUSED
    change(store, WorkflowChange.RESUME)

    assert play(store, {".2": FAIL}) == [".2"]

    assert (state(store), states(store)["m"]) == (W.PAUSED, N.FAILED)
    change(store, WorkflowChange.RESUME)
    assert state(store) is W.FAILED


@pytest.mark.parametrize("of_all", [True, False])
def test_a_retry_of_an_element_ends_the_pause_that_it_was_the_reason_of(store: Store, *, of_all: bool) -> None:
    first, second = elements_of(store, mapped(on_error=OnError.PAUSE))
    end(store, first, outcome=FAIL)
    end(store, second)

    if of_all:
        assert change(store, WorkflowChange.RETRY)
    else:
        carry_out(store, Order.RETRY, first.id)

    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node) == (W.RUNNING, None)
    assert sorted(play(store)) == [".0", ".2", "z"]
    assert state(store) is W.COMPLETED


def test_while_another_element_has_failed_that_is_the_error_of_the_workflow(store: Store) -> None:
    first, second = elements_of(store, mapped(on_error=OnError.PAUSE))
    end(store, first, second, outcome=FAIL)

    carry_out(store, Order.RETRY, first.id)

    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node) == (W.RUNNING, "m[1]")
    assert sorted(play(store)) == [".0", ".2"]
    assert state(store) is W.FAILED


def test_an_element_that_nobody_minds_does_not_pause(store: Store) -> None:
    lenient = {"args": b"{}", "references": (), "is_partial": True}
    flow = mapped(on_error=OnError.PAUSE)
    tolerated = [replace(n, is_tolerated=True) if n.name == "m" else n for n in flow.nodes]
    last = replace(tolerated[3], **lenient)
    first, _ = elements_of(store, replace(flow, nodes=[*tolerated[:3], last]))

    end(store, first, outcome=FAIL)

    assert state(store) is W.RUNNING
