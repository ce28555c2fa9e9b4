"""Another run of what failed in a workflow: it waits for what it takes, and for whoever paused it."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.flow_words import FAIL, begin, end, graph, play, state, states, take
from tests.words import carry_out, register

from everbeat.errors import EverbeatError
from everbeat.model import event
from everbeat.model.flow import ITEM, NewWorkflow, NodeKind, NodeStatus, OnError, WorkflowChange, WorkflowStatus
from everbeat.model.order import Order
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change, TaskStatus
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter

N, W = NodeStatus, WorkflowStatus
TAKES_A: dict[str, Any] = {"allow_failed": True, "args": b'{"x":null}', "references": ((5, 0),)}
"""The facts of a node that waits for the first one, however that ends."""


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def change(store: Store, what: WorkflowChange, id: str = "flow") -> bool:
    return store.change_workflow(what, id, actor="me")


def live_tasks(store: Store) -> list[str]:
    return [task.id for task in store.tasks(TaskFilter()) if not task.status.is_terminal]


def in_one(outer: NewWorkflow, inner: NewWorkflow, *, node: int) -> list[NewWorkflow]:
    return [outer, replace(inner, parent_id=outer.id, parent_node=node)]


INNER = {"kind": NodeKind.WORKFLOW, "task_id": None, "child_id": "inner"}


# -- it waits for its inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["workflow", "task"])
def test_a_node_that_is_retried_with_its_input_runs_after_it_and_gets_its_new_result(store: Store, by: str) -> None:
    begin(store, graph(a="", b="a", c="b", on_error=OnError.CONTINUE, nodes={"b": TAKES_A}))
    play(store, {"a": FAIL, "b": FAIL})

    if by == "workflow":
        assert change(store, WorkflowChange.RETRY)
    else:
        assert sorted(carry_out(store, Order.RETRY, "flow:a", "flow:b")) == ["flow:a", "flow:b"]

    first = take(store)
    assert list(first) == ["a"]
    end(store, first["a"], outcome=b"5")
    second = take(store)
    assert {name: json.loads(claim.args) for name, claim in second.items()} == {"b": {"x": 5}}
    end(store, second["b"])
    assert play(store) == ["c"]
    assert (state(store), set(states(store).values())) == (W.COMPLETED, {N.COMPLETED})


def test_what_is_nested_waits_for_the_inputs_of_its_node_again(store: Store) -> None:
    outer = graph(a="", inner="a", on_error=OnError.CONTINUE, nodes={"inner": INNER | {"allow_failed": True}})
    begin(store, *in_one(outer, graph("inner", x="", y="x"), node=1))
    play(store, {"a": FAIL, "x": FAIL})

    assert change(store, WorkflowChange.RETRY)

    assert (state(store, "inner"), states(store)["inner"]) == (W.PENDING, N.PENDING)
    assert play(store) == ["a", "x", "y"]
    assert (state(store), state(store, "inner")) == (W.COMPLETED, W.COMPLETED)


def test_a_node_that_was_about_to_start_waits_again_for_an_input_that_is_retried(store: Store) -> None:
    begin(store, graph(a="", b="a", on_error=OnError.PAUSE, nodes={"b": TAKES_A}))
    play(store, {"a": FAIL})
    assert (state(store), states(store)["b"]) == (W.PAUSED, N.READY)

    assert change(store, WorkflowChange.RETRY)

    assert states(store) == {"a": N.ENQUEUED, "b": N.PENDING}
    assert play(store) == ["a", "b"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_node_that_its_condition_does_not_want_any_more_leaves_no_task_behind(store: Store, inside: bool) -> None:
    """b ran because a had failed; after the retry a completes, and b is not needed."""
    unless = {"allow_failed": True, "condition": json.dumps({"unless": [{"node": 0, "in": [5]}]})}
    outer = graph(a="", b="a", on_error=OnError.CONTINUE, nodes={"b": unless | (INNER if inside else {})})
    begin(store, *in_one(outer, graph("inner", b=""), node=1)[: 1 + inside])
    play(store, {"a": FAIL, "b": FAIL})

    assert change(store, WorkflowChange.RETRY)

    assert play(store, {"a": b"5"}) == ["a"]
    assert (states(store), live_tasks(store)) == ({"a": N.COMPLETED, "b": N.SKIPPED}, [])
    assert not inside or (state(store, "inner"), states(store, "inner")) == (W.CANCELLED, {"b": N.SKIPPED})
    assert (state(store), store.mend_workflows(all_of_them=True)[:2]) == (W.COMPLETED, ({}, {}))


@pytest.mark.parametrize("inside", [False, True])
def test_a_node_that_was_not_wanted_after_a_retry_stays_so_after_the_next_one(store: Store, inside: bool) -> None:
    """b runs unless a results in 5, and waits for c, too, which fails once more and is retried again."""
    unless = {"allow_failed": True, "condition": json.dumps({"unless": [{"node": 1, "in": [5]}]})}
    outer = graph(c="", a="c", b="a c", on_error=OnError.CONTINUE,
                  nodes={"a": {"allow_failed": True}, "b": unless | (INNER if inside else {})})  # fmt: skip
    begin(store, *in_one(outer, graph("inner", b=""), node=2)[: 1 + inside])
    play(store, {"c": FAIL, "a": FAIL, "b": FAIL})
    change(store, WorkflowChange.RETRY)
    assert play(store, {"c": FAIL, "a": b"5"}) == ["c", "a"]
    assert states(store)["b"] is N.SKIPPED

    assert carry_out(store, Order.RETRY, "flow:c") == ["flow:c"]

    assert play(store) == ["c"]
    assert (states(store)["b"], live_tasks(store)) == (N.SKIPPED, [])
    assert store.mend_workflows(all_of_them=True)[:2] == ({}, {})


# -- a result that is lost --------------------------------------------------------------------------------------------


def lose_result(store: Store, task_id: str) -> None:
    """Its task has completed, and what it resulted in is not there."""
    with store.database.write() as tx:  # type: ignore[attr-defined]
        tx.run(
            "UPDATE everbeat_tasks SET status = 'COMPLETED', finished_at = 1, worker_id = NULL WHERE id = ?", (task_id,)
        )
    assert list(store.mend_workflows().mended) == ["flow"]


def test_a_node_whose_result_was_lost_runs_again_as_another_task(store: Store) -> None:
    begin(store, graph(a="", b="a", nodes={"b": {"args": b'{"x":null}', "references": ((5, 0),)}}))
    for task in ("flow:a", "flow:a.again"):
        lose_result(store, task)
        assert (state(store), states(store)) == (W.FAILED, {"a": N.FAILED, "b": N.SKIPPED})

        assert change(store, WorkflowChange.RETRY)

        assert live_tasks(store) == [f"{task}.again"]
    end(store, take(store)["a.again.again"], outcome=b"5")
    last = take(store)["b"]
    assert json.loads(last.args) == {"x": 5}
    end(store, last)
    assert (state(store), store.mend_workflows(all_of_them=True)[:2]) == (W.COMPLETED, ({}, {}))
    old = store.finished("flow:a")
    assert old is not None
    assert (old.status, old.result) == (TaskStatus.COMPLETED, None)
    assert not change(store, WorkflowChange.RETRY)


def test_an_element_of_a_map_whose_result_was_lost_runs_again_and_no_other_does(store: Store) -> None:
    over = {"kind": NodeKind.MAP, "task_id": None, "child_id": "m", "over": 0, "args": b'{"x":null}',
            "references": ((5, ITEM),)}  # fmt: skip
    begin(store, graph(a="", m="a", z="m", nodes={"m": over}))
    end(store, take(store)["a"], outcome=b"[1,2]")
    end(store, take(store)["m.0"])
    lose_result(store, "m.1")
    assert (state(store), states(store)["m"]) == (W.FAILED, N.FAILED)

    assert change(store, WorkflowChange.RETRY)

    assert play(store) == ["m.1.again", "z"]
    assert state(store) is W.COMPLETED


def test_a_cancel_reaches_what_waits_for_another_run(store: Store) -> None:
    begin(store, graph(a="", b="a", on_error=OnError.CONTINUE, nodes={"b": TAKES_A}))
    play(store, {"a": FAIL, "b": FAIL})
    change(store, WorkflowChange.RETRY)

    assert change(store, WorkflowChange.CANCEL)

    assert (set(states(store).values()), live_tasks(store), take(store)) == ({N.CANCELLED}, [], {})


def test_a_task_of_a_workflow_that_is_gone_can_be_retried(store: Store) -> None:
    begin(store, graph(a=""))
    play(store, {"a": FAIL})
    with store.database.write() as tx:  # type: ignore[attr-defined]
        tx.run("DELETE FROM everbeat_workflows")
        tx.run("DELETE FROM everbeat_workflow_tasks")

    assert carry_out(store, Order.RETRY, "flow:a") == ["flow:a"]

    assert [task.status for task in store.tasks(TaskFilter())] == [TaskStatus.PENDING]
    assert list(take(store)) == ["a"]


# -- and for whoever paused it ----------------------------------------------------------------------------------------


def test_a_retry_of_a_paused_workflow_in_which_nothing_failed_changes_nothing(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    change(store, WorkflowChange.PAUSE)
    told = len(store.events())

    assert not change(store, WorkflowChange.RETRY)

    assert (state(store), take(store), len(store.events())) == (W.PAUSED, {}, told)


def test_a_task_that_is_retried_in_a_paused_workflow_waits_for_the_resume(store: Store) -> None:
    begin(store, graph(a="", b="a", x="", on_error=OnError.CONTINUE))
    taken = take(store)
    end(store, taken["a"], outcome=FAIL)
    change(store, WorkflowChange.PAUSE)

    assert carry_out(store, Order.RETRY, "flow:a") == ["flow:a"]

    assert (take(store), state(store), states(store)["a"]) == ({}, W.PAUSED, N.READY)
    end(store, taken["x"])
    assert change(store, WorkflowChange.RESUME)
    assert play(store) == ["a", "b"]
    assert state(store) is W.COMPLETED


def in_a_paused_one(store: Store, *, inner_lives: bool) -> None:
    """x failed in inner, which has ended or waits for y to run again; then the workflow around it was paused."""
    outer = graph(inner="", other="", on_error=OnError.CONTINUE, nodes={"inner": INNER})
    begin(store, *in_one(outer, graph("inner", x="", **({"y": ""} if inner_lives else {})), node=0))
    taken = take(store)
    end(store, taken["x"], outcome=FAIL)
    assert change(store, WorkflowChange.PAUSE)
    for name in taken.keys() - {"x"}:
        end(store, taken[name], outcome=Verdict(change=Change.RETRY, error=None, reason="again"))


@pytest.mark.parametrize("inner_lives", [False, True])
@pytest.mark.parametrize("by", ["workflow", "task"])
def test_what_is_retried_inside_a_paused_workflow_waits_for_its_resume(
    store: Store, by: str, inner_lives: bool
) -> None:
    in_a_paused_one(store, inner_lives=inner_lives)

    if by == "workflow":
        assert change(store, WorkflowChange.RETRY, "inner")
    else:
        assert carry_out(store, Order.RETRY, "inner:x") == ["inner:x"]

    assert (take(store), state(store)) == ({}, W.PAUSED)
    assert state(store, "inner") is (W.PAUSED if inner_lives else W.PENDING)
    assert store.mend_workflows(all_of_them=True)[:2] == ({}, {})
    assert change(store, WorkflowChange.RESUME)
    assert sorted(play(store)) == ["other", "x", *(["y"] if inner_lives else [])]
    assert (state(store), state(store, "inner")) == (W.COMPLETED, W.COMPLETED)


def test_what_is_inside_a_paused_workflow_is_resumed_with_it_and_not_alone(store: Store) -> None:
    in_a_paused_one(store, inner_lives=True)

    assert not change(store, WorkflowChange.RESUME, "inner")

    assert (state(store, "inner"), take(store)) == (W.PAUSED, {})
    assert change(store, WorkflowChange.RESUME)
    assert sorted(play(store)) == ["other", "y"]


@pytest.mark.parametrize("by", ["workflow", "task"])
def test_a_pause_by_an_error_inside_is_over_when_that_is_retried(store: Store, by: str) -> None:
    outer = graph(inner="", other="", on_error=OnError.PAUSE, nodes={"inner": INNER})
    begin(store, *in_one(outer, graph("inner", x=""), node=0))
    taken = take(store)
    end(store, taken["x"], outcome=FAIL)
    end(store, taken["other"])
    assert (state(store), take(store)) == (W.PAUSED, {})

    if by == "workflow":
        assert change(store, WorkflowChange.RETRY, "inner")
    else:
        assert carry_out(store, Order.RETRY, "inner:x") == ["inner:x"]

    assert play(store) == ["x"]
    assert (state(store), state(store, "inner")) == (W.COMPLETED, W.COMPLETED)


# -- where its rows make no sense -------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["workflow", "task"])
def test_a_workflow_whose_rows_make_no_sense_is_not_retried_and_it_is_told(store: Store, by: str) -> None:
    begin(store, graph("bad", a="", b="a"))
    begin(store, graph("good", a="", b="a"))
    play(store, {"a": FAIL})
    with store.database.write() as tx:  # type: ignore[attr-defined]
        tx.run("UPDATE everbeat_workflow_tasks SET condition = 'no json' WHERE workflow_id = 'bad' AND name = 'b'")
    before = (state(store, "bad"), states(store, "bad"))

    if by == "workflow":
        with pytest.raises(EverbeatError, match=r"workflow bad is left as it is.*a condition is not understood: no"):
            change(store, WorkflowChange.RETRY, "bad")
        assert change(store, WorkflowChange.RETRY, "good")
    else:
        assert carry_out(store, Order.RETRY, "bad:a", "good:a") == ["good:a"]
        assert [one.facts["workflow"] for one in store.events() if one.name == event.WORKFLOW_TORN] == ["bad"]

    assert (state(store, "bad"), states(store, "bad")) == before
    assert live_tasks(store) == ["good:a"]
    assert play(store) == ["a", "b"]
