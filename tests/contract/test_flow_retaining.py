"""Retention of workflows: each as a whole, and never a task that a live one may need (PROTOCOL 32)."""

from dataclasses import replace

import pytest
from tests.contract.test_flows import nested
from tests.contract.test_retaining import HOUR, LEASE, cut, rows
from tests.flow_words import begin, end, graph, play, take
from tests.words import VirtualClock, register

from everbeat.model.flow import NodeKind, WorkflowChange
from everbeat.model.retention import Cut, Kept
from everbeat.store.interface import Store

TABLES = ("workflows", "workflow_tasks", "workflow_calls", "workflow_edges", "tasks")


@pytest.fixture(autouse=True)
def worker(store: Store) -> str:
    return register(store, "w1")


def test_a_finished_workflow_is_deleted_with_all_that_is_nested_in_it_and_its_tasks(
    store: Store, clock: VirtualClock
) -> None:
    begin(store, *nested())
    play(store)
    clock.advance(7_200)
    begin(store, graph("young", a=""))
    play(store)

    assert (cut(store, Kept.WORKFLOWS), cut(store, Kept.TASKS)) == (1, 4)
    assert [rows(store, table) for table in TABLES] == [1, 1, 1, 0, 1]


def test_the_old_tasks_of_a_live_workflow_are_kept(store: Store, clock: VirtualClock) -> None:
    begin(store, graph(a="", b="a"))
    end(store, take(store)["a"])
    clock.advance(7_200)

    assert (cut(store, Kept.WORKFLOWS), cut(store, Kept.TASKS)) == (0, 0)
    assert play(store) == ["b"]


def test_a_cancelled_workflow_is_kept_until_the_last_of_its_tasks_has_ended(store: Store, clock: VirtualClock) -> None:
    begin(store, graph(a=""))
    running = take(store)["a"]
    store.change_workflow(WorkflowChange.CANCEL, "flow", actor="me")
    clock.advance(7_200)

    assert cut(store, Kept.WORKFLOWS) == 0
    end(store, running)
    assert cut(store, Kept.WORKFLOWS) == 1


def test_many_workflows_are_deleted_in_bites(store: Store, clock: VirtualClock) -> None:
    for number in range(3):
        wide = {f"n{node}": "" for node in range(1_100)}
        begin(store, graph(f"flow{number}", **wide))
        while taken := take(store, places=1_100):
            end(store, *taken.values())
    clock.advance(7_200)

    assert cut(store, Kept.WORKFLOWS) == 3
    assert rows(store, "workflow_tasks") == 0


def test_what_is_nested_in_them_counts_for_the_bite(store: Store, clock: VirtualClock) -> None:
    wide = {f"n{node}": "" for node in range(1_100)}
    for number in range(3):
        flow_id = f"flow{number}"
        inner = {"kind": NodeKind.WORKFLOW, "task_id": None, "child_id": f"{flow_id}:m"}
        many = replace(graph(f"{flow_id}:m", **wide), parent_id=flow_id, parent_node=0)
        begin(store, graph(flow_id, m="", nodes={"m": inner}), many)
        store.change_workflow(WorkflowChange.CANCEL, flow_id, actor="me")
    clock.advance(7_200)

    old = Cut(kept=Kept.WORKFLOWS, older_than_us=HOUR)
    bites = [store.retain(old, worker_id="w1", lease_us=LEASE) for _ in range(2)]

    assert [bite and bite.deleted for bite in bites] == [2, 1]
