"""Workflows that something else tore: built by hand in the tables, found by recovery, finished by the usual path."""

from dataclasses import replace
from typing import Any, cast

import pytest
from tests.contract.test_flows import mapped, nested
from tests.flow_words import FAIL, begin, diamond, end, graph, play, state, states, take
from tests.words import completed, register

from everbeat.config import RecoveryConfig
from everbeat.model import event
from everbeat.model.flow import NodeStatus, OnError, WorkflowChange, WorkflowStatus
from everbeat.run.manual import ByHand
from everbeat.run.mending import torn_workflows
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush
from everbeat.store.transaction import RowRefused

N, W = NodeStatus, WorkflowStatus


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def by_hand(store: Store, sql: str, *values: Any) -> None:
    with cast(Any, store).database.write() as tx:
        assert tx.run(sql, values) > 0


def recovered(store: Store) -> int:
    return ByHand(store, RecoveryConfig()).recover_stuck_workflows()


def kill_task(store: Store, task_id: str, status: str, *, result: bytes | None = None, code: str | None = None) -> None:
    """Its task ends, and nobody tells the workflow."""
    by_hand(
        store,
        "UPDATE everbeat_tasks SET status = ?, finished_at = 1, result = ?, error_code = ? WHERE id = ?",
        status, result, code, task_id,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("status", "facts", "code"),
    [
        ("FAILED", {}, "WORKER_CRASHED"),
        ("FAILED", {"code": "TASK_TIMEOUT"}, "TASK_TIMEOUT"),
        ("CANCELLED", {}, "TASK_CANCELLED"),
        ("COMPLETED", {}, "RESULT_NOT_AVAILABLE"),
        ("EXPIRED", {}, "TASK_EXPIRED"),
    ],
)
@pytest.mark.parametrize("node_status", ["ENQUEUED", "RUNNING"])
def test_a_node_that_was_not_told_of_the_end_of_its_task_gets_its_error(
    store: Store, status: str, facts: dict[str, Any], code: str, node_status: str
) -> None:
    begin(store, diamond())
    kill_task(store, "flow:a", status, **facts)
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = ? WHERE name = 'a'", node_status)

    assert recovered(store) == 1

    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_node, info.error_code) == (W.FAILED, "a", code)
    assert states(store)["d"] is N.SKIPPED
    assert recovered(store) == 0


def test_a_stored_result_is_used_and_what_follows_starts_in_the_same_pass(store: Store) -> None:
    begin(store, graph(a="", b="a", nodes={"b": {"args": b'{"n":null}', "references": ((5, 0),)}}))
    kill_task(store, "flow:a", "COMPLETED", result=b"41")

    assert recovered(store) == 1

    assert take(store)["b"].args == b'{"n":41}'
    assert recovered(store) == 0


@pytest.mark.parametrize("node_status", ["PENDING", "READY"])
def test_a_node_that_says_it_has_not_begun_takes_the_end_of_its_task_in_the_same_pass(
    store: Store, node_status: str
) -> None:
    for flow in ("good", "bad"):
        begin(store, graph(flow, a="", b="a", c="b"))
        end(store, take(store)["a"])
    kill_task(store, "good:b", "COMPLETED", result=b"1")
    kill_task(store, "bad:b", "FAILED", code="TASK_TIMEOUT")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = ? WHERE name = 'b'", node_status)

    assert [recovered(store), recovered(store)] == [2, 0]

    assert states(store, "good") == {"a": N.COMPLETED, "b": N.COMPLETED, "c": N.ENQUEUED}
    assert states(store, "bad") == {"a": N.COMPLETED, "b": N.FAILED, "c": N.SKIPPED}
    assert (state(store, "good"), state(store, "bad")) == (W.RUNNING, W.FAILED)


@pytest.mark.parametrize(("on_error", "status"), [(OnError.PAUSE, W.PAUSED), (OnError.CONTINUE, W.COMPLETED)])
def test_the_policy_for_errors_applies_as_always(store: Store, on_error: OnError, status: WorkflowStatus) -> None:
    begin(store, graph(a="", on_error=on_error))
    kill_task(store, "flow:a", "FAILED")

    assert (recovered(store), state(store)) == (1, status)
    assert recovered(store) == 0


def test_a_node_whose_task_is_gone_fails_and_is_not_run_again(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    by_hand(store, "DELETE FROM everbeat_tasks WHERE id = 'flow:a'")

    assert (recovered(store), play(store)) == (1, [])
    info = store.workflow("flow")
    assert info is not None
    assert (info.status, info.error_code) == (W.FAILED, "RESULT_NOT_AVAILABLE")


def test_a_ready_node_without_a_task_gets_one(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    by_hand(store, "DELETE FROM everbeat_tasks")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = 'READY' WHERE name = 'a'")

    assert recovered(store) == 1
    assert recovered(store) == 0
    assert play(store) == ["a", "b"]
    assert state(store) is W.COMPLETED


def test_a_ready_node_of_a_paused_workflow_is_not_stuck(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    running = take(store)["a"]
    store.change_workflow(WorkflowChange.PAUSE, "flow", actor="me")
    end(store, running)

    assert (states(store)["b"], recovered(store), take(store)) == (N.READY, 0, {})


def test_a_node_whose_inputs_have_all_ended_is_decided_about(store: Store) -> None:
    begin(store, diamond())
    end(store, take(store)["a"])
    end(store, *take(store).values())
    assert states(store)["d"] is N.ENQUEUED
    by_hand(store, "DELETE FROM everbeat_tasks WHERE id = 'flow:d'")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = 'PENDING', deps_left = 2, deps_ok = 0 WHERE name = 'd'")

    assert recovered(store) == 1
    assert play(store) == ["d"]
    assert state(store) is W.COMPLETED


def test_counters_that_nobody_counted_down_are_counted_anew(store: Store) -> None:
    begin(store, diamond())
    end(store, take(store)["a"])
    sides = take(store)
    end(store, sides["b"])
    by_hand(store, "UPDATE everbeat_workflow_tasks SET deps_left = 2, deps_ok = 0 WHERE name = 'd'")

    assert recovered(store) == 1
    end(store, sides["c"])
    assert play(store) == ["d"]


def test_a_nested_workflow_that_ended_tells_the_one_around_it(store: Store) -> None:
    begin(store, *nested())
    end(store, take(store)["a"])
    end(store, take(store)["b"])
    end(store, take(store)["c"])
    by_hand(store, "DELETE FROM everbeat_tasks WHERE id = 'flow:d'")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = 'PENDING', deps_left = 1, deps_ok = 0 WHERE name = 'd'")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = 'RUNNING', finished_at = NULL WHERE name = 'inner'")
    by_hand(store, "UPDATE everbeat_workflows SET nodes_left = 2 WHERE id = 'flow'")

    assert recovered(store) == 1
    assert play(store) == ["d"]
    assert state(store) is W.COMPLETED


def test_a_nested_workflow_that_was_never_begun_begins(store: Store) -> None:
    begin(store, *nested())
    end(store, take(store)["a"])
    by_hand(store, "DELETE FROM everbeat_tasks WHERE id = 'inner:b'")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = 'READY' WHERE name = 'b'")
    by_hand(store, "UPDATE everbeat_workflows SET status = 'PENDING' WHERE id = 'inner'")

    assert recovered(store) == 1
    assert play(store) == ["b", "c", "d"]


def test_a_map_that_lost_its_elements_gets_them_again(store: Store) -> None:
    begin(store, mapped())
    taken = take(store)
    end(store, taken["a"], outcome=b"[1,2]")
    end(store, taken["k"])
    for table, column in (
        ("tasks", "workflow_id"),
        ("workflow_tasks", "workflow_id"),
        ("workflow_calls", "workflow_id"),
        ("workflows", "id"),
    ):
        by_hand(store, f"DELETE FROM everbeat_{table} WHERE {column} = 'inside:'")

    assert recovered(store) == 1
    assert play(store) == [".0", ".1", "z"]


def test_a_workflow_all_of_whose_nodes_have_ended_ends(store: Store) -> None:
    begin(store, graph(a="", b=""))
    play(store, {"a": FAIL})
    by_hand(store, "UPDATE everbeat_workflows SET status = 'RUNNING', finished_at = NULL")

    assert (recovered(store), state(store)) == (1, W.FAILED)
    assert recovered(store) == 0


def test_a_cancelled_workflow_is_not_revived_by_recovery(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    take(store)
    store.change_workflow(WorkflowChange.CANCEL, "flow", actor="me")
    kill_task(store, "flow:a", "COMPLETED", result=b"1")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = 'PENDING' WHERE name = 'b'")

    assert recovered(store) == 1
    assert (state(store), states(store)) == (W.CANCELLED, {"a": N.COMPLETED, "b": N.CANCELLED})
    assert (recovered(store), take(store)) == (0, {})


@pytest.mark.parametrize(
    "poison",
    ["workflow_tasks SET condition = 'no json'", "workflow_tasks SET condition = '{\"when\":[{\"node\":\"x\"}]}'",
     "workflow_tasks SET task_name = NULL", "workflow_calls SET node = 7"],
)  # fmt: skip
def test_a_poison_row_is_set_aside_and_the_others_proceed(store: Store, poison: str) -> None:
    for name in ("a-good", "bad", "z-good"):
        begin(store, graph(name, a="", b="a"))
        kill_task(store, f"{name}:a", "COMPLETED", result=b"1")
    by_hand(store, f"UPDATE everbeat_{poison} WHERE workflow_id = 'bad' AND node = 1")

    assert recovered(store) == 2

    info = store.workflow("bad")
    assert info is not None
    assert info.stuck
    assert [one.facts["workflow"] for one in store.events() if one.name == event.WORKFLOW_STUCK] == ["bad"]
    assert play(store) == ["b", "b"]
    assert recovered(store) == 0
    by_hand(store, "UPDATE everbeat_workflow_tasks SET condition = NULL, task_name = 'add'")
    by_hand(store, "UPDATE everbeat_workflow_calls SET node = 1 WHERE node IN (1, 7)")
    assert (recovered(store), play(store), state(store, "bad")) == (1, ["b"], W.COMPLETED)


def test_a_poison_row_does_not_keep_the_outcome_of_a_task_from_being_stored(store: Store) -> None:
    begin(store, graph("bad", a="", b="a"))
    begin(store, graph("good", a="", b="a"))
    by_hand(store, "UPDATE everbeat_workflow_tasks SET condition = 'no json' WHERE workflow_id = 'bad' AND name = 'b'")
    taken = [*take(store, places=1).values(), *take(store, places=1).values()]

    flush = Flush(worker_id="w1", endings=[Ending(claim=claim, verdict=completed()) for claim in taken])
    with pytest.raises(RowRefused):
        store.flush(flush)
    assert store.finished("good:a") is None
    store.flush(replace(flush, row_by_row=True))

    assert store.finished("bad:a") is not None
    assert (states(store, "bad")["a"], states(store, "good")["b"]) == (N.ENQUEUED, N.ENQUEUED)
    assert [one.facts["workflow"] for one in store.events() if one.name == event.WORKFLOW_TORN] == ["bad"]


def test_a_mended_workflow_says_what_was_wrong(store: Store) -> None:
    begin(store, graph(a=""))
    kill_task(store, "flow:a", "FAILED")
    recovered(store)

    (told,) = [one for one in store.events() if one.name == event.WORKFLOW_MENDED]
    assert (told.facts["actor"], told.facts["reason"]) == (
        "system/recovery", "node 0 was not told that its task is FAILED",
    )  # fmt: skip


def test_more_workflows_than_are_looked_at_in_one_go_are_all_found_and_mended(store: Store) -> None:
    for number in range(120):
        begin(store, graph(f"flow-{number:03}", a=""))
    by_hand(store, "UPDATE everbeat_tasks SET status = 'COMPLETED', result = ?, finished_at = 1", b"1")

    assert len(torn_workflows(store).mended) == 120
    assert recovered(store) == 120
    assert recovered(store) == 0


def test_workflows_are_measured_by_status_and_by_what_halts_them(store: Store) -> None:
    begin(store, graph("bad", a="", b="a"))
    kill_task(store, "bad:a", "COMPLETED", result=b"1")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET condition = '{' WHERE workflow_id = 'bad' AND node = 1")
    recovered(store)
    begin(store, graph("done", a=""))
    play(store)
    begin(store, graph("failed", a=""))
    play(store, {"a": FAIL})
    begin(store, graph("by error", a="", on_error=OnError.PAUSE))
    play(store, {"a": FAIL})
    begin(store, *nested(on_error=OnError.PAUSE))
    play(store, {"b": FAIL})
    begin(store, graph("by a person", a=""))
    store.change_workflow(WorkflowChange.PAUSE, "by a person", actor="ann")

    found = store.measure()

    assert found.workflows == {"PENDING": 0, "RUNNING": 2, "PAUSED": 2, "COMPLETED": 1, "FAILED": 1, "CANCELLED": 0}
    assert found.halted_workflows == {"error": 2, "torn": 1}
