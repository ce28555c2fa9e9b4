"""A flush that ends a node and claims the one after it: what it takes for known, and whom it wakes."""

from dataclasses import replace

import pytest
from tests.flow_words import FAIL, begin, end, graph, states, take
from tests.words import a_room, claim, claim_one, completed, failed, register, requeue, settle, status_of

from everbeat.model.flow import NodeStatus, OnError
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush
from everbeat.store.sql.working import Working
from everbeat.store.transaction import RowRefused, Transaction
from everbeat.store.verbs import flow_ready, owning

TAKES = {"args": b"[null]", "references": ((1, 0),)}


def test_a_result_that_is_refused_is_no_argument_of_the_next_node(store: Store) -> None:
    begin(store, graph(a="", b="a", nodes={"a": {"max_attempts": 2}, "b": TAKES}))
    late = claim_one(store, "w1")
    requeue(store, late)
    settle(store, claim_one(store, "w2"), completed(b"3"))

    stale = Ending(claim=late, verdict=completed(b"9"))
    (following,) = store.flush(Flush(worker_id="w1", endings=[stale], room=a_room())).claims

    assert (following.id, following.args) == ("flow:b", b"[3]")


@pytest.mark.parametrize(
    ("shunned", "taken", "woken"),
    [([], ["flow:b"], set()), (["flow"], [], {("default", "add")})],
    ids=["what it takes itself", "what it passes over"],
)
def test_others_are_woken_for_what_a_flush_makes_ready_and_leaves(
    store: Store, shunned: list[str], taken: list[str], woken: set[tuple[str, str]]
) -> None:
    assert isinstance(store, Working)
    begin(store, graph(a="", b="a", nodes={"b": TAKES}))
    ending = Ending(claim=claim_one(store), verdict=completed())
    room = replace(a_room(2), shunned=frozenset(shunned))

    with store.database.write() as tx:
        flushed = owning.flush(tx, Flush(worker_id="w1", endings=[ending], room=room, seen_beat=0))

    assert [claim.id for claim in flushed.claims] == taken
    assert tx.wakes == woken


def test_a_task_that_somebody_wrote_into_a_workflow_without_a_node_keeps_no_other_from_ending(store: Store) -> None:
    assert isinstance(store, Working)
    register(store, "w1")
    begin(store, graph(on_error=OnError.CONTINUE, a="", b=""))
    taken = take(store)
    with store.database.write() as tx:
        tx.run("UPDATE everbeat_tasks SET node = NULL WHERE id = 'flow:a'")

    end(store, taken["a"], taken["b"], outcome=FAIL)

    assert [status_of(store, f"flow:{name}") for name in "ab"] == ["FAILED", "FAILED"]
    assert states(store) == {"a": "ENQUEUED", "b": "FAILED"}
    assert list(store.mend_workflows().mended) == ["flow"]
    assert states(store) == {"a": "FAILED", "b": "FAILED"}


@pytest.mark.parametrize("width", [3, 1_201])
@pytest.mark.parametrize("is_one_failed", [False, True], ids=["all complete", "one fails"])
def test_a_join_is_counted_down_once_for_all_inputs_that_end_together(
    store: Store, width: int, is_one_failed: bool
) -> None:
    inputs = {f"n{number}": "" for number in range(width)}
    register(store, "w1")
    begin(store, graph(**inputs, all=" ".join(inputs), other="n0 n1", nodes={"all": {"allow_failed": True}}))
    *taken, last = take(store, places=width).values()
    endings = [Ending(claim=claim, verdict=completed()) for claim in taken]
    endings[0] = Ending(claim=taken[0], verdict=failed() if is_one_failed else completed())

    store.flush(Flush(worker_id="w1", endings=endings))
    before = states(store)
    end(store, last)

    assert (before["all"], states(store)["all"]) == (NodeStatus.PENDING, NodeStatus.ENQUEUED)
    assert before["other"] == (NodeStatus.SKIPPED if is_one_failed else NodeStatus.ENQUEUED)


@pytest.mark.parametrize("size", [1, flow_ready.SHORT, flow_ready.SHORT + 1])
def test_a_join_is_given_all_results_whether_they_are_short_or_long(store: Store, size: int) -> None:
    takes = {"args": b"[null, null]", "references": ((1, 0), (7, 1))}
    register(store, "w1")
    begin(store, graph(a="", b="", c="a b", nodes={"c": takes}))
    first, last = take(store, places=2).values()
    settle(store, first, completed(b"1" * size))

    flush = Flush(worker_id="w1", endings=[Ending(claim=last, verdict=completed(b"2"))], room=a_room())
    (join,) = store.flush(flush).claims

    assert join.args == b"[" + b"1" * size + b", 2]"


def test_nodes_are_given_the_results_of_their_own_workflow_if_several_end_in_one_flush(store: Store) -> None:
    takes = {"args": b"[null]", "references": ((1, 0),)}
    register(store, "w1")
    for flow in ("one", "two"):
        begin(store, graph(flow, a="", b="a", nodes={"b": takes}))
    taken = claim(store, places=2)
    results = {f"{flow}:a": b'"%s"' % flow.encode() for flow in ("one", "two")}
    endings = [Ending(claim=one, verdict=completed(results[one.id])) for one in taken]

    claims = store.flush(Flush(worker_id="w1", endings=endings, room=a_room(2))).claims

    assert {one.id: one.args for one in claims} == {"one:b": b'["one"]', "two:b": b'["two"]'}


def _read_and_fail(tx: Transaction) -> None:
    tx.results["flow"] = {(0, 0): b"3"}
    raise ValueError("it makes no sense")


def test_results_that_were_read_in_a_part_that_is_undone_are_forgotten(store: Store) -> None:
    assert isinstance(store, Working)
    with store.database.write() as tx:
        with pytest.raises(RowRefused), tx.part():
            _read_and_fail(tx)
        assert tx.results == {}
