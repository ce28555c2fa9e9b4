"""What `db check` finds of rows that contradict themselves or each other. Nothing of it is changed."""

from typing import Any, cast

import pytest
from tests.flow_words import begin, graph, take
from tests.words import claim_one, completed, enqueue, register, settle

from everbeat.model.flow import WorkflowChange
from everbeat.store.interface import Store
from everbeat.store.messages import Held


def write(store: Store, sql: str, *values: Any) -> None:
    """As somebody would who knows nothing of our rules."""
    with cast(Any, store).database.write() as tx:
        tx.run(sql, values)


def test_a_store_that_only_we_have_written_is_without_contradictions(store: Store) -> None:
    for name in ("ended", "running", "waiting"):
        enqueue(store, id=name)
    register(store, "w")
    settle(store, claim_one(store, worker="w"), completed())
    running = claim_one(store, worker="w")
    store.beat("w", [Held(task_id=running.id, fence=running.fence, role="runner", pid=1)])

    assert (store.contradictions(), store.oddities(scan=True)) == ([], [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("status = 'RUNNING', started_at = 1", "task odd is RUNNING, but nobody owns it; recovery decides about it"),
        ("worker_id = 'w'", "task odd is PENDING, but it has an owner"),
        ("status = 'RUNNING', worker_id = 'w'", "task odd is RUNNING, but it has no start"),
        ("status = 'FAILED'", "task odd is FAILED, but it has no end"),
        ("finished_at = 1", "task odd is PENDING, but it has an end"),
    ],
)
def test_a_task_that_contradicts_itself_is_named(store: Store, change: str, said: str) -> None:
    register(store, "w")
    enqueue(store, id="odd")
    write(store, f"UPDATE everbeat_tasks SET {change} WHERE id = 'odd'")

    assert (store.contradictions(), store.oddities(scan=True)) == ([said], [])


def test_an_owner_without_a_row_is_named(store: Store) -> None:
    enqueue(store, id="odd")
    write(store, "UPDATE everbeat_tasks SET status = 'CLAIMED', worker_id = 'nobody' WHERE id = 'odd'")

    (said,) = store.contradictions()

    assert said == "worker nobody owns tasks (1), but there is no such worker; recovery decides about them"


def test_heartbeats_of_no_task_are_counted(store: Store) -> None:
    register(store, "w")
    store.beat("w", [Held(task_id=task, fence=1, role="runner", pid=1) for task in ("a", "b")])

    (said,) = store.oddities(scan=True)

    assert store.contradictions() == []
    assert said == "there are heartbeats (2) of tasks that are not there; retention removes them"


def test_a_workflow_that_has_ended_over_nodes_that_have_not_is_named(store: Store) -> None:
    register(store, "w")
    begin(store, graph("stopping", a=""))
    take(store, worker="w")
    store.change_workflow(WorkflowChange.CANCEL, "stopping", actor="me")
    begin(store, graph("odd", a="", b="a"))
    assert store.contradictions() == []

    write(store, "UPDATE everbeat_workflows SET status = 'COMPLETED', finished_at = 5, nodes_left = 0 WHERE id = 'odd'")

    assert store.contradictions() == [
        "workflow odd is COMPLETED and says that no node is left, but nodes of it (2) have not ended; recovery does "
        "not look at it before its nodes_left says so"
    ]
    write(store, "UPDATE everbeat_workflows SET nodes_left = 2 WHERE id = 'odd'")
    assert list(store.mend_workflows().mended) == ["odd"]
