"""Workflows in the store: an outcome and all that follows from it are one commit."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.conftest import OpenStore
from tests.flow_words import CANCEL, FAIL, begin, diamond, end, graph, mapped, play, state, states, take
from tests.words import (
    NOON,
    VirtualClock,
    a_policy,
    a_room,
    a_task,
    abandoned,
    carry_out,
    claim_alone,
    completed,
    recover,
    register,
    requeue,
    settle,
    start,
    succeeded,
)

from everbeat.model import event
from everbeat.model.flow import ITEM, NewWorkflow, NodeKind, NodeStatus, OnError, WorkflowChange, WorkflowStatus
from everbeat.model.order import Order
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush, TaskFilter
from everbeat.store.moments import moment

N, W = NodeStatus, WorkflowStatus


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def args_of(store: Store, node: str) -> object:
    return json.loads(take(store)[node].args)


# -- one after the other ----------------------------------------------------------------------------------------------


def test_a_diamond_runs_in_its_order_and_completes_with_its_last_node(store: Store) -> None:
    begin(store, diamond())

    assert play(store) == ["a", "b", "c", "d"]
    assert state(store) is W.COMPLETED
    assert set(states(store).values()) == {N.COMPLETED}


def test_what_follows_is_ready_for_the_flush_that_settled_its_input(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    (first,) = take(store).values()

    flushed = store.flush(Flush(worker_id="w1", endings=[Ending(claim=first, verdict=completed())], room=a_room(1)))

    assert [claim.id for claim in flushed.claims] == ["flow:b"]


def test_results_are_put_into_arguments_where_they_belong(store: Store) -> None:
    template = b'{"rows":[null,null],"text":"null","plain":null}'
    facts = {"d": {"args": template, "references": ((9, 1), (14, 2))}}
    begin(store, diamond(nodes=facts))
    end(store, take(store)["a"])
    sides = take(store)
    end(store, sides["b"], outcome=b'{"x":[1,"]"]}')
    end(store, sides["c"], outcome=b"null")

    assert args_of(store, "d") == {"rows": [{"x": [1, "]"]}, None], "text": "null", "plain": None}


def test_a_task_that_runs_again_gets_the_same_arguments(store: Store) -> None:
    begin(store, graph(a="", b="a", nodes={"b": {"args": b'{"n":null}', "references": ((5, 0),)}}))
    end(store, take(store)["a"], outcome=b"41")
    first = take(store)["b"]
    requeue(store, first)

    assert args_of(store, "b") == {"n": 41}


def test_references_that_make_no_sense_fail_in_the_process_and_harm_nobody_else(store: Store) -> None:
    begin(store, graph(a="", b="a", nodes={"b": {"args": b'{"n":1}', "references": ((5, 0),)}}))
    end(store, take(store)["a"])
    store.enqueue([a_task(id="x:plain")])

    taken = take(store)

    assert (taken["b"].args, taken["plain"].args) == (b"", b"[1,2]")


def test_arguments_that_would_be_too_large_fail_before_anything_is_read(store: Store) -> None:
    facts = {"d": {"args": b'{"rows":[null,null]}', "references": ((9, 1), (14, 2))}}
    begin(store, NewWorkflow(**_facts(diamond(nodes=facts), max_bytes=10)))  # type: ignore[arg-type]

    assert play(store, {"b": b'"six"', "c": b'"longer"'}) == ["a", "b", "c"]

    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node, info.error_code) == (W.FAILED, "d", "ARGUMENTS_INVALID")
    assert info.error_message == "the results that are its arguments take 13 bytes, the limit is 10"


def test_the_same_id_is_the_same_workflow_and_another_content_is_refused(store: Store) -> None:
    begin(store, NewWorkflow(**_facts(diamond(), digest="one")))

    again = store.start_workflow([NewWorkflow(**_facts(diamond(), digest="one"))])
    other = store.start_workflow([NewWorkflow(**_facts(graph(z=""), digest="two"))])

    assert (again.created, again.conflict, other.created, other.conflict) == (False, False, False, True)
    assert play(store) == ["a", "b", "c", "d"]


def _facts(flow: NewWorkflow, **more: object) -> dict[str, object]:
    return {slot: getattr(flow, slot) for slot in flow.__slots__} | more


# -- failures ---------------------------------------------------------------------------------------------------------


def test_on_error_fail_runs_what_does_not_depend_on_the_failure_and_then_fails(store: Store) -> None:
    begin(store, graph(a="", b="a", c="b", x="", y="x"))

    assert sorted(play(store, {"a": FAIL})) == ["a", "x", "y"]
    assert states(store) == {"a": N.FAILED, "b": N.SKIPPED, "c": N.SKIPPED, "x": N.COMPLETED, "y": N.COMPLETED}
    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node, info.error_code) == (W.FAILED, "a", "UNHANDLED_EXCEPTION")


def test_on_error_continue_completes_all_the_same(store: Store) -> None:
    begin(store, graph(a="", b="a", x="", on_error=OnError.CONTINUE))
    play(store, {"a": FAIL})

    assert state(store) is W.COMPLETED
    assert states(store) == {"a": N.FAILED, "b": N.SKIPPED, "x": N.COMPLETED}


def test_on_error_pause_starts_nothing_new_until_it_is_resumed(store: Store) -> None:
    begin(store, graph(a="", b="a", x="", y="x", on_error=OnError.PAUSE))
    taken = take(store)
    end(store, taken["a"], outcome=FAIL)
    end(store, taken["x"])

    assert (state(store), take(store)) == (W.PAUSED, {})
    assert states(store)["y"] is N.READY
    assert store.change_workflow(WorkflowChange.RESUME, "flow", actor="me")
    assert play(store) == ["y"]
    assert state(store) is W.FAILED


def test_a_pause_by_the_last_node_waits_for_a_person(store: Store) -> None:
    begin(store, graph(a="", on_error=OnError.PAUSE))
    play(store, {"a": FAIL})
    assert state(store) is W.PAUSED

    store.change_workflow(WorkflowChange.RETRY, "flow", actor="me")

    assert play(store) == ["a"]
    assert state(store) is W.COMPLETED


def test_a_success_policy_asks_for_its_nodes_and_no_others(store: Store) -> None:
    begin(store, graph("met", a="", b="", success=(1,)))
    begin(store, graph("unmet", a="", b="", success=(0,)))
    play(store, {"a": FAIL})

    assert (state(store, "met"), state(store, "unmet")) == (W.COMPLETED, W.FAILED)


@pytest.mark.parametrize("on_error", [OnError.FAIL, OnError.CONTINUE])
def test_a_success_that_was_not_met_names_the_node_that_it_asks_for_or_what_kept_it_from_starting(
    store: Store, on_error: OnError
) -> None:
    unwanted = {"condition": json.dumps({"when": [{"node": 1, "in": [99]}]})}
    begin(store, graph(x="", y="", z="y", success=(2,), on_error=on_error, nodes={"z": unwanted}))
    begin(store, graph("chain", x="", v="", w="v", z="w", success=(3,), on_error=on_error))
    begin(store, graph("itself", x="", y="", z="", success=(1, 2), on_error=on_error))

    play(store, {"x": FAIL, "v": FAIL, "z": FAIL})

    said = {flow: store.workflow(flow) for flow in ("flow", "chain", "itself")}
    assert {flow: info and (info.status, info.error_node, info.error_code) for flow, info in said.items()} == {
        "flow": (W.FAILED, "z", "CONDITION_NOT_MET"),
        "chain": (W.FAILED, "v", "UNHANDLED_EXCEPTION"),
        "itself": (W.FAILED, "z", "UNHANDLED_EXCEPTION"),
    }
    info = said["flow"]
    assert info is not None
    assert info.error_message == "it must complete, and was skipped: its condition does not hold"


def test_a_node_that_allows_failures_receives_them_as_values(store: Store) -> None:
    facts = {"c": {"allow_failed": True, "args": b'{"rows":[null,null]}', "references": ((9, 0), (14, 1))}}
    begin(store, graph(a="", b="", c="a b", nodes=facts))
    taken = take(store)
    end(store, taken["a"], outcome=FAIL)
    end(store, taken["b"], outcome=b"7")

    rows = args_of(store, "c")["rows"]  # type: ignore[index]

    assert rows[0] == {"node": "a", "status": "FAILED", "error_code": "UNHANDLED_EXCEPTION", "message": "it broke",
                       "task_id": "flow:a"}  # fmt: skip
    assert rows[1] == 7


@pytest.mark.parametrize("way", ["expired", "unknown", "cancelled", "failed by hand", "abandoned"])
def test_whatever_ends_a_task_ends_its_node(store: Store, way: str) -> None:
    facts = {"a": {"good_until": 1}} if way == "expired" else {}
    begin(store, graph(a="", b="a", nodes=facts))
    match way:
        case "expired":
            store.expire(settle_us=0)
        case "unknown":
            register(store, "w1b", task_names=("nothing",))
            store.retire("w1")
            store.refuse_unknown(after_us=0, gap_us=10**12)
            store.refuse_unknown(after_us=0, gap_us=10**12)
        case "cancelled":
            carry_out(store, Order.CANCEL, "flow:a")
        case "failed by hand":
            carry_out(store, Order.FAIL, "flow:a")
        case "abandoned":
            recover(store, take(store)["a"], abandoned())

    assert states(store)["a"] in (N.FAILED, N.CANCELLED)
    assert (states(store)["b"], state(store)) == (N.SKIPPED, W.FAILED)


def test_an_adopted_result_lets_its_workflow_go_on(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    first = take(store)["a"]
    requeue(store, first)

    settle(store, first, completed(), outcome=succeeded())

    assert play(store) == ["b"]


def test_a_late_result_that_a_person_accepts_reopens_what_was_given_up(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    first = take(store)["a"]
    carry_out(store, Order.FAIL, "flow:a")
    assert state(store) is W.FAILED

    settle(store, first, completed(), outcome=succeeded())
    assert store.accept("flow:a", actor="me")

    assert play(store) == ["b"]
    assert state(store) is W.COMPLETED


# -- joins and conditions ---------------------------------------------------------------------------------------------


def test_any_starts_with_the_first_result_and_once(store: Store) -> None:
    begin(store, graph(a="", b="", c="", j="a b c", nodes={"j": {"needed": 1}}))
    taken = take(store)
    end(store, taken["b"], outcome=FAIL)
    assert take(store) == {}
    end(store, taken["a"])
    joined = take(store)
    end(store, taken["c"])

    assert list(joined) == ["j"]
    assert take(store) == {}
    end(store, joined["j"])
    assert state(store) is W.COMPLETED


def three_to_join(**facts: object) -> NewWorkflow:
    """j takes a, b and c in a list, and needs two of them."""
    takes = {"needed": 2, "args": b'{"rows":[null,null,null]}', "references": ((9, 0), (14, 1), (19, 2))}
    return graph(a="", b="", c="", j="a b c", nodes={"j": takes | facts})


@pytest.mark.parametrize("slow", "abc")
def test_a_quorum_gets_the_results_that_are_there_and_the_same_ones_in_every_run(store: Store, slow: str) -> None:
    begin(store, three_to_join())
    taken = take(store)
    there = [name for name in "abc" if name != slow]
    end(store, taken[there[1]], outcome=b"7")
    end(store, taken[there[0]], outcome=b"6")
    first = take(store)["j"]
    assert json.loads(first.args) == {"rows": [6, 7]}
    requeue(store, first)
    end(store, taken[slow], outcome=b"8")

    assert args_of(store, "j") == {"rows": [6, 7]}


def test_a_quorum_gets_no_failures_and_all_results_that_are_there_when_it_starts(store: Store) -> None:
    begin(store, three_to_join(needed=1))
    taken = take(store)
    end(store, taken["a"], outcome=FAIL)
    end(store, taken["b"], taken["c"], outcome=b"7")

    assert args_of(store, "j") == {"rows": [7, 7]}


def test_a_partial_join_that_allows_failures_has_a_value_for_every_input(store: Store) -> None:
    begin(store, three_to_join(needed=1, allow_failed=True))
    taken = take(store)
    end(store, taken["b"], outcome=FAIL)
    end(store, taken["a"], outcome=b"7")
    first = take(store)["j"]
    requeue(store, first)
    end(store, taken["c"], outcome=b"8")

    rows = args_of(store, "j")["rows"]  # type: ignore[index]

    assert rows == json.loads(first.args)["rows"]
    assert rows[0] == 7
    assert [(row["node"], row["status"], row["error_code"]) for row in rows[1:]] == [
        ("b", "FAILED", "UNHANDLED_EXCEPTION"), ("c", "PENDING", "NOT_ENDED"),
    ]  # fmt: skip


def test_a_failure_that_a_node_was_given_is_the_same_in_its_next_run_also_if_it_is_retried(store: Store) -> None:
    takes = {"allow_failed": True, "args": b'{"rows":[null,null]}', "references": ((9, 0), (14, 1))}
    begin(store, graph(a="", b="", j="a b", nodes={"j": takes}))
    taken = take(store)
    end(store, taken["a"], outcome=FAIL)
    end(store, taken["b"], outcome=b"7")
    first = take(store)["j"]
    assert carry_out(store, Order.RETRY, "flow:a") == ["flow:a"]
    requeue(store, first)

    assert take(store)["j"].args == first.args


def test_a_quorum_that_can_not_be_met_fails_at_once(store: Store) -> None:
    begin(store, graph(a="", b="", c="", j="a b c", nodes={"j": {"needed": 2}}))
    taken = take(store)
    end(store, taken["a"], taken["b"], outcome=FAIL)

    assert states(store)["j"] is N.FAILED
    end(store, taken["c"])
    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node, info.error_code) == (W.FAILED, "j", "JOIN_NOT_MET")


@pytest.mark.parametrize("inputs", ["a", "a b"])
def test_a_partial_join_that_needs_all_of_its_inputs_judges_their_failure(store: Store, inputs: str) -> None:
    """`any` of one, or a quorum of all: it is not skipped, and the failure is its own."""
    begin(store, graph(a="", b="", j=inputs, last="j", nodes={"j": {"is_partial": True}}))
    play(store, {"a": FAIL})

    assert states(store) == {"a": N.FAILED, "b": N.COMPLETED, "j": N.FAILED, "last": N.SKIPPED}
    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node, info.error_code) == (W.FAILED, "j", "JOIN_NOT_MET")


def test_a_partial_join_that_needs_all_of_its_inputs_is_skipped_with_what_was_not_wanted(store: Store) -> None:
    never = {"condition": json.dumps({"when": [{"node": 0, "in": ["other"]}]})}
    begin(store, graph(ask="", a="ask", j="a", nodes={"a": never, "j": {"is_partial": True}}))
    play(store)

    assert (states(store)["j"], state(store)) == (N.SKIPPED, W.COMPLETED)


@pytest.mark.parametrize(("result", "runs"), [(b'"yes"', "yes"), (b'"no"', "no"), (b"true", "no")])
def test_conditions_choose_a_branch_and_any_joins_them_again(store: Store, result: bytes, runs: str) -> None:
    is_yes = {"node": 0, "in": ["yes", 1]}
    facts = {
        "yes": {"condition": json.dumps({"when": [is_yes]})},
        "no": {"condition": json.dumps({"unless": [is_yes]})},
        "after": {"needed": 1},
    }
    begin(store, graph(ask="", yes="ask", no="ask", after="yes no", nodes=facts))

    assert play(store, {"ask": result}) == ["ask", runs, "after"]
    assert state(store) is W.COMPLETED


def test_what_waits_for_a_skipped_node_is_skipped_without_an_error(store: Store) -> None:
    facts = {"b": {"condition": json.dumps({"when": [{"node": 0, "in": [1]}]})}}
    begin(store, graph(a="", b="a", c="b", nodes=facts))
    play(store, {"a": b"2"})

    assert states(store) == {"a": N.COMPLETED, "b": N.SKIPPED, "c": N.SKIPPED}
    assert state(store) is W.COMPLETED


def test_the_last_two_inputs_of_a_join_in_one_flush_or_by_two_workers_make_one_join(open_store: OpenStore) -> None:
    stores = [open_store(), open_store()]
    register(stores[1], "w2")
    order = random.Random(6)
    for number in range(30):
        name = f"flow{number}"
        begin(stores[0], graph(name, a="", b="", j="a b"))
        first, second = take(stores[0], "w1", 1), take(stores[1], "w2", 1)
        ends = [(stores[0], first), (stores[1], second)]
        order.shuffle(ends)
        for store, taken in ends:
            end(store, *taken.values())
        joined = [*take(stores[0], "w1"), *take(stores[1], "w2")]

        assert joined == ["j"]


# -- maps and nested workflows ----------------------------------------------------------------------------------------


def test_a_map_runs_over_what_is_known_only_then_and_results_in_a_list(store: Store) -> None:
    begin(store, mapped())
    taken = take(store)
    end(store, taken["a"], outcome=b'[10,{"y":2},"three"]')
    end(store, taken["k"], outcome=b"5")

    items = take(store)
    assert [json.loads(claim.args) for claim in items.values()] == [
        {"x": 10, "k": 5}, {"x": {"y": 2}, "k": 5}, {"x": "three", "k": 5},
    ]  # fmt: skip
    for number, claim in enumerate(items.values()):
        end(store, claim, outcome=str(number).encode())
    assert args_of(store, "z") == {"all": [0, 1, 2]}


@pytest.mark.parametrize(("result", "status"), [(b"[]", N.COMPLETED), (b'{"no":"list"}', N.FAILED)])
def test_a_map_over_nothing_is_empty_and_over_no_list_fails(store: Store, result: bytes, status: NodeStatus) -> None:
    begin(store, mapped())
    play(store, {"a": result})

    assert states(store)["m"] is status
    assert state(store) is (W.COMPLETED if status is N.COMPLETED else W.FAILED)


def nested(**facts: object) -> list[NewWorkflow]:
    """a, then [b, c] of a workflow of its own, then d."""
    outer = graph(a="", inner="a", d="inner", nodes={"inner": inside("inner")})
    inner = graph("inner", b="", c="b", **facts)  # type: ignore[arg-type]
    return [outer, replace(inner, parent_id="flow", parent_node=1)]


def test_nodes_say_which_attempt_they_are_and_how_long_the_last_one_took(store: Store, clock: VirtualClock) -> None:
    begin(store, graph(a="", b="a", c="b", nodes={"a": {"max_attempts": 2}}))
    lost = take(store)["a"]
    start(store, lost)
    clock.advance(7)
    requeue(store, lost)
    clock.advance(1)
    again = take(store)["a"]
    start(store, again)
    clock.advance(2.5)

    def told() -> list[tuple[str, int, timedelta | None]]:
        return [(node.status, node.attempt, node.duration) for node in store.workflow_nodes("flow")]

    assert told() == [("RUNNING", 2, None), ("PENDING", 0, None), ("PENDING", 0, None)]
    end(store, again)
    second = take(store)["b"]
    start(store, second)
    clock.advance(0.25)
    end(store, second, outcome=FAIL)

    assert told() == [
        ("COMPLETED", 2, timedelta(seconds=2.5)), ("FAILED", 1, timedelta(seconds=0.25)), ("SKIPPED", 0, None),
    ]  # fmt: skip
    first = store.workflow_nodes("flow")[0]
    assert (first.started_at, first.finished_at) == (moment(NOON + 8_000_000), moment(NOON + 10_500_000))


def test_a_nested_workflow_and_a_map_take_as_long_as_what_is_inside(store: Store, clock: VirtualClock) -> None:
    took: dict[str, tuple[int, timedelta | None]] = {}
    for flows in (nested(), [mapped(id="maps")]):
        flow = begin(store, *flows)
        while taken := take(store):
            start(store, *taken.values())
            clock.advance(2)
            end(store, *taken.values(), outcome=b"[1,2]")
        took |= {node.name: (node.attempt, node.duration) for node in store.workflow_nodes(flow)}

    two = timedelta(seconds=2)
    assert (took["inner"], took["d"]) == ((0, 2 * two), (1, two))
    assert (took["m"], took["z"]) == ((0, two), (1, two))


def inside(id: str) -> dict[str, object]:
    """The facts of a node that is this workflow."""
    return {"kind": NodeKind.WORKFLOW, "task_id": None, "child_id": id}


def test_a_nested_workflow_is_a_node_of_the_one_around_it(store: Store) -> None:
    begin(store, *nested())
    assert state(store, "inner") is W.PENDING

    assert play(store) == ["a", "b", "c", "d"]
    assert (state(store), state(store, "inner")) == (W.COMPLETED, W.COMPLETED)


def test_the_failure_of_a_nested_workflow_is_that_of_its_node(store: Store) -> None:
    begin(store, *nested())
    play(store, {"c": FAIL})

    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node, info.error_message) == (W.FAILED, "inner", "c: it broke")
    assert states(store)["d"] is N.SKIPPED


def test_what_failed_in_a_nested_workflow_that_completed_all_the_same_is_not_run_again(store: Store) -> None:
    """The one around it has gone on with its result."""
    begin(store, *nested(on_error=OnError.CONTINUE))
    play(store, {"b": FAIL, "d": FAIL})
    assert (state(store), state(store, "inner"), states(store)["inner"]) == (W.FAILED, W.COMPLETED, N.COMPLETED)

    assert not change(store, WorkflowChange.RETRY, "inner")
    assert change(store, WorkflowChange.RETRY)

    assert play(store) == ["d"]
    assert (state(store), state(store, "inner"), states(store, "inner")["b"]) == (W.COMPLETED, W.COMPLETED, N.FAILED)
    assert store.mend_workflows(all_of_them=True)[:2] == ({}, {})


def without_output(**d: object) -> list[NewWorkflow]:
    """inner completes although b, and so its output c, does not; d takes its result, e only waits for it."""
    takes = {"args": b'{"x":null}', "references": ((5, 0),)}
    outer = graph(inner="", k="", d="inner k", e="inner", nodes={"inner": inside("inner"), "d": takes | d})
    inner = graph("inner", b="", c="b", on_error=OnError.CONTINUE)
    return [outer, replace(inner, parent_id="flow", parent_node=0)]


def test_what_takes_the_result_of_a_nested_workflow_that_has_none_fails_and_says_why(store: Store) -> None:
    begin(store, *without_output())

    assert play(store, {"b": FAIL}) == ["k", "b", "e"]

    assert states(store) == {"inner": N.COMPLETED, "k": N.COMPLETED, "d": N.FAILED, "e": N.COMPLETED}
    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node, info.error_code, info.error_message) == (
        W.FAILED, "d", "RESULT_NOT_AVAILABLE", "inner has no result: b: it broke",
    )  # fmt: skip
    inner = store.workflow_nodes("flow")[0]
    assert (inner.error_code, inner.error_message) == ("RESULT_NOT_AVAILABLE", "b: it broke")
    assert store.mend_workflows(all_of_them=True)[:2] == ({}, {})


def test_what_allows_failures_receives_that_of_a_nested_workflow_that_has_no_result(store: Store) -> None:
    begin(store, *without_output(allow_failed=True))
    taken = take(store)
    end(store, taken["b"], outcome=FAIL)
    end(store, taken["k"])

    assert args_of(store, "d")["x"] == {
        "node": "inner", "status": "FAILED", "error_code": "RESULT_NOT_AVAILABLE", "message": "b: it broke",
        "task_id": None,
    }  # fmt: skip


def test_a_map_with_the_result_of_a_nested_workflow_that_has_none_fails_and_says_why(store: Store) -> None:
    for over, references in ((0, ((5, ITEM),)), (1, ((5, ITEM), (14, 0)))):
        facts = {"kind": NodeKind.MAP, "task_id": None, "child_id": f"m{over}", "over": over,
                 "args": b'{"x":null,"k":null}', "references": references}  # fmt: skip
        nodes = {"inner": inside(f"inner{over}"), "m": facts}
        outer = graph(f"flow{over}", inner="", k="", m="inner k", nodes=nodes)
        inner = graph(f"inner{over}", b="", on_error=OnError.CONTINUE)
        begin(store, outer, replace(inner, parent_id=outer.id, parent_node=0))
        play(store, {"b": FAIL, "k": b"[1]"})

        info = store.workflow(outer.id)
        assert info is not None
        assert (info.error_node, info.error_code, info.error_message) == (
            "m", "RESULT_NOT_AVAILABLE", "inner has no result: b: it broke",
        )  # fmt: skip


def test_a_result_that_is_missing_deep_inside_is_missing_all_the_way_out(store: Store) -> None:
    takes = {"args": b'{"x":null}', "references": ((5, 0),)}
    outer = graph(middle="", z="middle", nodes={"middle": inside("middle"), "z": takes})
    middle = graph("middle", inner="", nodes={"inner": inside("inner")})
    inner = graph("inner", x="", on_error=OnError.CONTINUE)
    begin(store, outer, replace(middle, parent_id="flow", parent_node=0),
          replace(inner, parent_id="middle", parent_node=0))  # fmt: skip

    play(store, {"x": FAIL})

    info = store.workflow("flow")
    assert info is not None
    assert (info.error_node, info.error_message) == ("z", "middle has no result: inner: x: it broke")


def in_the_middle(**facts: object) -> list[NewWorkflow]:
    """a and middle, then z; in middle there is inner, and x in it."""
    outer = graph(a="", middle="", z="a middle", nodes={"middle": inside("middle")})
    middle = graph("middle", inner="", nodes={"inner": inside("inner")}, **facts)  # type: ignore[arg-type]
    return [
        outer, replace(middle, parent_id="flow", parent_node=1),
        replace(graph("inner", x=""), parent_id="middle", parent_node=0),
    ]  # fmt: skip


def assert_none_lives_again(store: Store, task_id: str, *flows: str) -> None:
    """Neither by the task nor by the workflows, and nothing has changed."""
    before = [(state(store, flow), states(store, flow)) for flow in ("flow", *flows)]

    assert list(store.carry_out(Order.RETRY, TaskFilter(ids=[task_id]), actor="me")) == []
    assert store.count_for(Order.RETRY, TaskFilter(ids=[task_id])) == 0
    assert not any(change(store, WorkflowChange.RETRY, flow) for flow in flows)
    assert [(state(store, flow), states(store, flow)) for flow in ("flow", *flows)] == before
    assert take(store) == {}
    assert store.mend_workflows(all_of_them=True)[:2] == ({}, {})


def test_a_task_of_a_nested_workflow_that_completed_all_the_same_is_not_run_again(store: Store) -> None:
    begin(store, *nested(on_error=OnError.CONTINUE))
    play(store, {"b": FAIL})
    assert (state(store), state(store, "inner")) == (W.COMPLETED, W.COMPLETED)

    assert_none_lives_again(store, "inner:b", "inner")
    over = store.over_around("inner:b")
    assert over is not None
    assert (over.id, over.status) == ("inner", W.COMPLETED)


def test_what_failed_deep_inside_one_that_completed_all_the_same_is_not_run_again(store: Store) -> None:
    begin(store, *in_the_middle(on_error=OnError.CONTINUE))
    play(store, {"x": FAIL, "z": FAIL})
    assert [state(store, flow) for flow in ("flow", "middle", "inner")] == [W.FAILED, W.COMPLETED, W.FAILED]

    assert_none_lives_again(store, "inner:x", "middle", "inner")
    assert change(store, WorkflowChange.RETRY)
    assert play(store) == ["z"]
    assert [state(store, flow) for flow in ("flow", "middle", "inner")] == [W.COMPLETED, W.COMPLETED, W.FAILED]


def test_what_failed_inside_before_the_workflow_around_it_was_cancelled_is_not_run_again(store: Store) -> None:
    begin(store, *in_the_middle())
    end(store, take(store)["x"], outcome=FAIL)
    assert change(store, WorkflowChange.CANCEL)
    assert [state(store, flow) for flow in ("flow", "middle", "inner")] == [W.CANCELLED, W.FAILED, W.FAILED]

    assert_none_lives_again(store, "inner:x", "middle", "inner")
    over = store.over_around("inner:x")
    assert over is not None
    assert (over.id, over.status) == ("flow", W.CANCELLED)


def test_a_task_of_a_workflow_that_completed_all_the_same_and_is_in_no_other_is_run_again(store: Store) -> None:
    begin(store, graph(a="", b="a", x="", on_error=OnError.CONTINUE))
    play(store, {"a": FAIL})
    assert state(store) is W.COMPLETED

    assert store.over_around("flow:a") is None
    assert carry_out(store, Order.RETRY, "flow:a") == ["flow:a"]
    assert play(store) == ["a", "b"]
    assert (state(store), set(states(store).values())) == (W.COMPLETED, {N.COMPLETED})


def test_a_late_result_is_not_accepted_where_the_workflow_went_on_without_it(store: Store) -> None:
    begin(store, *nested(on_error=OnError.CONTINUE))
    end(store, take(store)["a"])
    slow = take(store)["b"]
    carry_out(store, Order.FAIL, "inner:b")
    settle(store, slow, completed(), outcome=succeeded())
    assert state(store, "inner") is W.COMPLETED

    assert not store.accept("inner:b", actor="me")

    assert states(store, "inner")["b"] is N.FAILED
    assert [task.status for task in store.tasks(TaskFilter(ids=["inner:b"]))] == ["FAILED"]
    assert play(store) == ["d"]


@pytest.mark.parametrize("join", ["all", "any"])
def test_a_nested_workflow_that_never_begins_ends_with_its_node_and_can_live_again(store: Store, join: str) -> None:
    """`first` fails, so `inner` is skipped, or can not be joined: nobody must wait for what is in it."""
    deepest = graph("flow:inner:deep", x="")
    inner = graph("flow:inner", b="", deep="b", nodes={"deep": inside("flow:inner:deep")})
    needs_two = {"needed": 1 if join == "any" else 2}
    outer = graph(first="", second="", inner="first second", last="inner",
                  nodes={"inner": inside("flow:inner") | needs_two})  # fmt: skip
    begin(
        store, outer, replace(inner, parent_id="flow", parent_node=2),
        replace(deepest, parent_id="flow:inner", parent_node=1),
    )  # fmt: skip
    play(store, {"first": FAIL, "second": FAIL})

    assert states(store)["inner"] is (N.SKIPPED if join == "all" else N.FAILED)
    flows = ("flow", "flow:inner", "flow:inner:deep")
    assert [state(store, flow) for flow in flows] == [W.FAILED, W.CANCELLED, W.CANCELLED]
    assert set(states(store, "flow:inner").values()) == {N.SKIPPED}
    assert change(store, WorkflowChange.RETRY)
    assert [state(store, flow) for flow in flows] == [W.RUNNING, W.PENDING, W.PENDING]
    assert play(store) == ["first", "second", "b", "x", "last"]
    assert {state(store, flow) for flow in flows} == {W.COMPLETED}


def test_a_nested_workflow_that_paused_itself_is_resumed_through_the_one_around_it(store: Store) -> None:
    begin(store, *nested(on_error=OnError.PAUSE))
    play(store, {"b": FAIL})
    (waiting,) = [node.waiting_for for node in store.workflow_nodes("flow") if node.name == "inner"]
    assert (state(store), state(store, "inner"), waiting) == (W.RUNNING, W.PAUSED, "workflow inner, which is paused")

    assert change(store, WorkflowChange.RESUME)

    assert (state(store), state(store, "inner")) == (W.FAILED, W.FAILED)
    assert not change(store, WorkflowChange.RESUME)


def test_those_around_a_nested_workflow_that_paused_itself_say_that_they_wait_for_it(store: Store) -> None:
    outer = graph(middle="", nodes={"middle": inside("middle")})
    middle = replace(graph("middle", inner="", nodes={"inner": inside("inner")}), parent_id="flow", parent_node=0)
    inner = replace(graph("inner", b="", c="b", on_error=OnError.PAUSE), parent_id="middle", parent_node=0)
    begin(store, outer, middle, inner)
    assert [info.waiting_for for info in store.workflows()] == [None]

    play(store, {"b": FAIL})
    begin(store, graph("other", a=""))

    waits = {info.id: info.waiting_for for info in store.workflows()}
    assert waits == {"flow": "workflow inner, which is paused", "other": None}
    asked = [store.workflow(one) for one in ("flow", "middle", "inner")]
    assert [info and info.waiting_for for info in asked] == [*["workflow inner, which is paused"] * 2, None]
    change(store, WorkflowChange.PAUSE)
    assert [info.waiting_for for info in store.workflows()] == [None, None]


# -- by a person ------------------------------------------------------------------------------------------------------


def change(store: Store, what: WorkflowChange, id: str = "flow") -> bool:
    return store.change_workflow(what, id, actor="me")


def test_what_became_ready_in_a_pause_starts_also_if_the_resume_ends_something_nested(store: Store) -> None:
    facts = {
        "b": {"allow_failed": True},
        "inner": {"kind": NodeKind.WORKFLOW, "task_id": None, "child_id": "inside"},
    }
    outer = graph(a="", b="a", inner="", on_error=OnError.PAUSE, nodes=facts)
    begin(store, outer, replace(graph("inside", x=""), parent_id="flow", parent_node=2))
    held = take(store)
    end(store, held["a"], outcome=FAIL)
    end(store, held["x"])

    assert change(store, WorkflowChange.RESUME)

    assert states(store) == {"a": N.FAILED, "b": N.ENQUEUED, "inner": N.COMPLETED}


def test_a_paused_node_never_starts_and_runs_once_after_the_resume(store: Store) -> None:
    begin(store, graph(a="", b="a", c=""))
    running = take(store, places=1)["a"]
    assert change(store, WorkflowChange.PAUSE)
    assert not change(store, WorkflowChange.PAUSE)
    assert take(store) == {}
    end(store, running, outcome=Verdict(change=Change.RETRY, error=None, reason="again"))
    assert take(store) == {}

    assert change(store, WorkflowChange.RESUME)
    assert sorted(play(store)) == ["a", "b", "c"]
    assert state(store) is W.COMPLETED


def test_what_failed_in_a_pause_is_run_again_by_a_retry(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    held = take(store)
    change(store, WorkflowChange.PAUSE)
    end(store, held["a"], outcome=FAIL)

    assert change(store, WorkflowChange.RETRY)

    assert play(store) == ["a", "b"]
    assert state(store) is W.COMPLETED


def test_a_claimed_task_is_taken_back_by_a_pause_before_its_code_begins(store: Store) -> None:
    begin(store, graph(a="", nodes={"a": {"task_name": "later", "policy": a_policy(isolated=True)}}))
    claimed = claim_alone(store)
    change(store, WorkflowChange.PAUSE)

    assert start(store, claimed).started == []
    change(store, WorkflowChange.RESUME)
    assert claim_alone(store).id == "flow:a"


def test_a_pause_frees_exclusive_keys_and_a_resume_stands_in_line_again(store: Store) -> None:
    begin(store, graph(a="", nodes={"a": {"exclusive_key": "k"}}))
    store.enqueue([a_task(id="x:other", exclusive_key="k")])
    change(store, WorkflowChange.PAUSE)

    other = take(store)
    assert list(other) == ["other"]
    change(store, WorkflowChange.RESUME)
    assert take(store) == {}
    end(store, *other.values())
    assert list(take(store)) == ["a"]


def test_pause_resume_and_cancel_act_on_what_is_nested(store: Store) -> None:
    begin(store, *nested())
    end(store, take(store)["a"])
    change(store, WorkflowChange.PAUSE)
    assert (state(store, "inner"), take(store)) == (W.PAUSED, {})
    change(store, WorkflowChange.RESUME)
    running = take(store)["b"]

    assert change(store, WorkflowChange.CANCEL)
    assert (state(store), state(store, "inner")) == (W.CANCELLED, W.CANCELLED)
    end(store, running)
    assert (state(store), state(store, "inner")) == (W.CANCELLED, W.CANCELLED)
    assert states(store) == {"a": N.COMPLETED, "inner": N.CANCELLED, "d": N.CANCELLED}
    assert states(store, "inner") == {"b": N.COMPLETED, "c": N.CANCELLED}


def test_nodes_that_are_cancelled_with_their_workflow_say_who_wanted_it(store: Store) -> None:
    """Those that wait, those whose task waits, one that runs, one that is a workflow, and what is in it."""
    inner = replace(graph("inner", x="", y="x"), parent_id="flow", parent_node=2)
    begin(store, graph(a="", b="a", inner="", c="", nodes={"inner": inside("inner")}), inner)
    running = take(store, places=1)["a"]
    change(store, WorkflowChange.CANCEL)
    end(store, running, outcome=CANCEL)

    said = "the workflow flow was cancelled by me"
    for flow in ("flow", "inner"):
        reasons = {(node.status, node.error_code, node.error_message) for node in store.workflow_nodes(flow)}
        assert reasons == {(N.CANCELLED, "WORKFLOW_CANCELLED", said)}
        info = store.workflow(flow)
        assert info is not None
        assert (info.error_node, info.error_code, info.error_message) == (None, "WORKFLOW_CANCELLED", said)


def test_what_failed_before_its_workflow_was_cancelled_keeps_its_own_reason(store: Store) -> None:
    begin(store, graph(a="", b="a", c="", on_error=OnError.PAUSE))
    end(store, take(store, places=1)["a"], outcome=FAIL)
    change(store, WorkflowChange.CANCEL)

    reasons = {node.name: node.error_code for node in store.workflow_nodes("flow")}
    assert reasons == {"a": "UNHANDLED_EXCEPTION", "b": "UPSTREAM_FAILED", "c": "WORKFLOW_CANCELLED"}


def test_the_cancel_of_a_nested_workflow_is_the_reason_of_its_node(store: Store) -> None:
    begin(store, *nested())
    end(store, take(store)["a"])
    change(store, WorkflowChange.CANCEL, "inner")

    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node, info.error_code) == (W.FAILED, "inner", "WORKFLOW_CANCELLED")
    assert info.error_message == "the workflow inner was cancelled by me"


def test_a_cancelled_workflow_stays_cancelled(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    running = take(store)["a"]
    change(store, WorkflowChange.CANCEL)
    assert store.ours("w1").owned == {(running.seq, running.fence): True}
    end(store, running, outcome=CANCEL)

    assert not change(store, WorkflowChange.RESUME)
    assert not change(store, WorkflowChange.RETRY)
    assert carry_out(store, Order.RETRY, "flow:a") == []
    assert (state(store), take(store)) == (W.CANCELLED, {})


@pytest.mark.parametrize("by", ["workflow", "task"])
def test_a_retry_runs_what_failed_and_what_was_given_up_and_nothing_else(store: Store, by: str) -> None:
    begin(store, graph(a="", b="a", c="b", x=""))
    play(store, {"b": FAIL})
    assert state(store) is W.FAILED

    if by == "workflow":
        assert change(store, WorkflowChange.RETRY)
    else:
        carry_out(store, Order.RETRY, "flow:b")

    assert state(store) is W.RUNNING
    assert play(store) == ["b", "c"]
    assert state(store) is W.COMPLETED
    assert not change(store, WorkflowChange.RETRY)


def test_a_retry_reaches_into_what_is_nested_and_up_again(store: Store) -> None:
    begin(store, *nested())
    play(store, {"c": FAIL})

    assert change(store, WorkflowChange.RETRY)

    assert play(store) == ["c", "d"]
    assert (state(store), state(store, "inner")) == (W.COMPLETED, W.COMPLETED)


def test_a_retry_of_a_map_runs_the_elements_that_failed(store: Store) -> None:
    begin(store, mapped())
    taken = take(store)
    end(store, taken["a"], outcome=b"[1,2]")
    end(store, taken["k"])
    first, second = take(store).values()
    end(store, first, outcome=b"1")
    end(store, second, outcome=FAIL)
    assert state(store) is W.FAILED

    change(store, WorkflowChange.RETRY)

    assert play(store) == [".1", "z"]
    assert state(store) is W.COMPLETED


def test_changes_are_announced(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    change(store, WorkflowChange.PAUSE)
    change(store, WorkflowChange.RESUME)
    play(store, {"a": FAIL})
    change(store, WorkflowChange.RETRY)
    play(store)

    told = [one.name for one in store.events() if one.name.startswith("workflow.")]
    assert told == [event.WORKFLOW_PAUSED, event.WORKFLOW_RESUMED, event.WORKFLOW_FAILED, event.WORKFLOW_RETRIED,
                    event.WORKFLOW_COMPLETED]  # fmt: skip


def test_what_a_live_workflow_needs_is_neither_purged_nor_erased(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    end(store, take(store)["a"])

    assert carry_out(store, Order.PURGE, "flow:a") == carry_out(store, Order.ERASE, "flow:a") == []
    play(store)
    assert carry_out(store, Order.ERASE, "flow:a") == ["flow:a"]
    assert carry_out(store, Order.PURGE, "flow:b") == ["flow:b"]


def test_what_a_paused_workflow_needs_is_kept_also_if_all_of_its_nodes_have_ended(store: Store) -> None:
    begin(store, graph(a="", b="a", on_error=OnError.PAUSE))
    play(store, {"b": FAIL})
    assert state(store) is W.PAUSED

    assert carry_out(store, Order.PURGE, "flow:a", "flow:b") == carry_out(store, Order.ERASE, "flow:a") == []
    assert change(store, WorkflowChange.RETRY)
    assert play(store) == ["b"]


def test_two_workers_that_finish_the_last_two_inputs_at_the_same_moment_make_one_join(open_store: OpenStore) -> None:
    stores = {"w1": open_store(), "w2": open_store()}
    register(stores["w2"], "w2")
    rounds = 3_000
    pairs = {f"{side}{number}": "" for side in "ab" for number in range(rounds)}
    joins = {f"j{number}": f"a{number} b{number}" for number in range(rounds)}
    begin(stores["w1"], graph(**pairs, **joins))
    taken = {name: list(take(store, name, rounds).values()) for name, store in stores.items()}
    together = threading.Barrier(2)

    def finish(name: str) -> None:
        for claim in taken[name]:
            together.wait(timeout=30)
            end(stores[name], claim)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(finish, stores))

    assert len(stores["w1"].tasks(TaskFilter(limit=10_000))) == 3 * rounds
    assert set(take(stores["w1"], places=rounds + 1)) == set(joins)
    assert stores["w1"].mend_workflows(all_of_them=True)[:2] == ({}, {})
