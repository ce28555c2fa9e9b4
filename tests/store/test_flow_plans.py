"""What workflows cost: on SQLite no statement walks a table, and on both stores a wide join costs what its own edges
cost: as much for each input of 10,000 as of 500, in instructions or in statements and rows, not in time."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.flow_words import FAIL, begin, end, graph, take
from tests.postgres import EmptyDatabase
from tests.store.test_pg_round_trips import round_trips, turn
from tests.store.test_plans import explain, steps
from tests.words import a_room, carry_out, completed, register

from everbeat.model.flow import NewWorkflow, NodeKind, OnError, WorkflowChange
from everbeat.model.order import Order
from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.store.verbs import (
    flow_advance,
    flow_args,
    flow_blame,
    flow_ends,
    flow_hold,
    flow_look,
    flow_mend,
    flow_orders,
    flow_ready,
    flow_reopen,
    flow_rows,
    flow_unbegun,
    owning,
)

MODULES = (flow_advance, flow_args, flow_blame, flow_ends, flow_hold, flow_look, flow_mend, flow_orders, flow_ready,
           flow_reopen, flow_rows, flow_unbegun)  # fmt: skip

WIDTHS = 500, 10_000
FEW = 50
NESTED = 50, 500

TOUCHED = """
SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0) + n_tup_ins + n_tup_upd + n_tup_del)
  FROM pg_stat_xact_user_tables WHERE relname LIKE 'everbeat%'"""

NO_TABLES = {"SCAN ended", "SCAN o"}
"""The inputs that have just ended, counted; those around a paused workflow."""
BY_ID = "USING INDEX sqlite_autoindex_everbeat_workflows_1 (id=?)"
IN_TREE = "USING INDEX everbeat_workflows_halted (root_id=?)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "plans.db", durability="normal")
    register(store, "w1")
    yield store
    store.close()


def statements() -> Iterator[str]:
    for module in MODULES:
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, str) and re.match(r"\s*(SELECT|UPDATE|INSERT) ", value):
                yield value.replace("{marks}", "?, ?")


def test_no_statement_walks_a_table(store: SQLiteStore) -> None:
    with store.database.alone() as connection:
        plans = {sql: explain(connection, sql) for sql in statements() if sql != flow_look.INFO}

    assert len(plans) > 40
    assert not {
        sql: plan
        for sql, plan in plans.items()
        if any(step.startswith("SCAN") and step not in NO_TABLES for step in plan)
    }


def some_inputs(store: Store, width: int) -> list[Claim]:
    """Of a join of so many: claimed."""
    inputs = {f"n{number}": "" for number in range(width)}
    begin(store, graph(f"flow{width}", **inputs, join=" ".join(inputs)))
    return list(take(store, places=2 * FEW).values())


def test_ending_some_inputs_of_a_join_costs_the_same_however_many_it_has(store: SQLiteStore) -> None:
    costs = []
    for width in WIDTHS:
        taken = some_inputs(store, width)
        costs.append(steps(store, lambda taken=taken: end(store, *taken)))
        store.change_workflow(WorkflowChange.CANCEL, f"flow{width}", actor="me")

    assert costs[1] <= costs[0] * 1.2 + 5


def fan_of_nested(flow_id: str, count: int, *, on_error: OnError = OnError.FAIL, **first: str) -> list[NewWorkflow]:
    """So many workflows of one node each, after the first nodes."""
    names = {f"n{number}": " ".join(first) for number in range(count)}
    inside = {name: {"kind": NodeKind.WORKFLOW, "task_id": None, "child_id": f"{flow_id}:{name}"} for name in names}
    inner = [
        replace(graph(f"{flow_id}:{name}", x="", on_error=on_error), parent_id=flow_id, parent_node=number)
        for number, name in enumerate(names, len(first))
    ]
    return [graph(flow_id, nodes=inside, on_error=on_error, **first, **names), *inner]


def test_nested_workflows_that_never_begin_cost_the_same_each_however_many_there_are(store: SQLiteStore) -> None:
    """When what is before them fails, and when that is to run again."""
    costs: list[list[float]] = []
    for count in NESTED:
        flow_id = f"flow{count}"
        begin(store, *fan_of_nested(flow_id, count, a=""))
        (taken,) = take(store).values()
        given_up = steps(store, lambda taken=taken: end(store, taken, outcome=FAIL))
        again = steps(store, lambda flow_id=flow_id: store.change_workflow(WorkflowChange.RETRY, flow_id, actor="me"))
        costs.append([given_up / count, again / count])
        store.change_workflow(WorkflowChange.CANCEL, flow_id, actor="me")

    few, many = costs
    assert all(one <= other * 1.5 for one, other in zip(many, few, strict=True)), costs


def test_nested_workflows_that_a_failure_pauses_cost_the_same_each_however_many_there_are(store: SQLiteStore) -> None:
    """When they fail, and when what failed in one of them is to run again."""
    costs: list[list[float]] = []
    for count in NESTED:
        flow_id = f"flow{count}"
        begin(store, *fan_of_nested(flow_id, count, on_error=OnError.PAUSE))
        taken = list(store.flush(Flush(worker_id="w1", room=a_room(FEW))).claims)
        paused = steps(store, lambda taken=taken: end(store, *taken, outcome=FAIL))
        again = steps(store, lambda taken=taken: carry_out(store, Order.RETRY, taken[0].id))
        costs.append([paused, again])
        store.change_workflow(WorkflowChange.CANCEL, flow_id, actor="me")

    few, many = costs
    assert all(one <= other * 1.5 for one, other in zip(many, few, strict=True)), costs


def test_a_chain_that_is_given_up_and_run_again_costs_the_same_for_each_node_however_long_it_is(
    store: SQLiteStore,
) -> None:
    costs: list[list[float]] = []
    for length in NESTED:
        flow_id = f"flow{length}"
        chain = {"n0": ""} | {f"n{number}": f"n{number - 1}" for number in range(1, length)}
        begin(store, graph(flow_id, success=(length - 1,), **chain))
        (taken,) = take(store).values()
        given_up = steps(store, lambda taken=taken: end(store, taken, outcome=FAIL))
        again = steps(store, lambda flow_id=flow_id: store.change_workflow(WorkflowChange.RETRY, flow_id, actor="me"))
        costs.append([given_up / length, again / length])
        store.change_workflow(WorkflowChange.CANCEL, flow_id, actor="me")

    few, many = costs
    assert all(one <= other * 1.5 for one, other in zip(many, few, strict=True)), costs


def test_what_is_paused_inside_is_found_by_its_tree(store: SQLiteStore) -> None:
    with store.database.alone() as connection:
        plan = explain(connection, flow_look.PAUSED_INSIDE.format(marks="?, ?"))

    assert [step for step in plan if "everbeat" in step] == [
        f"SEARCH a {BY_ID}", f"SEARCH i {IN_TREE}", f"SEARCH p {BY_ID}", f"SEARCH w {BY_ID}"
    ]  # fmt: skip


def pause_inside(store: Store, flow_id: str, count: int) -> None:
    """So many nested workflows, by their failures."""
    begin(store, *fan_of_nested(flow_id, count, on_error=OnError.PAUSE))
    claims = store.flush(Flush(worker_id="w1", room=a_room(2 * count))).claims
    end(store, *(claim for claim in claims if claim.id.startswith(flow_id)), outcome=FAIL)
    info = store.workflow(flow_id)
    assert info is not None
    assert info.waiting_for == f"workflow {flow_id}:n0, which is paused"


def test_a_look_at_a_workflow_costs_the_same_however_many_are_paused_inside_others(store: SQLiteStore) -> None:
    begin(store, graph("mine", a=""))
    costs = []
    for count in NESTED:
        pause_inside(store, f"flow{count}", count)
        costs.append(steps(store, lambda: store.workflow("mine")))

    assert costs[1] <= costs[0] + 1


def test_and_on_postgresql(a_database: EmptyDatabase) -> None:
    with closing(PostgresStore(a_database.with_tables(), patience=5.0)) as store:
        register(store, "w1")
        begin(store, graph("mine", a=""))
        for count in NESTED:
            pause_inside(store, f"flow{count}", count)
            with store.database.write() as tx:
                tx.run("ANALYZE everbeat_workflows")
            with store.database.read(steady=True) as tx:
                (before,) = tx.all(TOUCHED)
                tx.among(flow_look.PAUSED_INSIDE, (), ["mine"])
                (after,) = tx.all(TOUCHED)
            assert after[0] - before[0] <= 1


def test_it_takes_the_same_round_trips_and_touches_the_same_rows_on_postgresql(
    a_database: EmptyDatabase, tmp_path: Path
) -> None:
    costs = []
    with closing(PostgresStore(a_database.with_tables(), patience=5.0)) as store:
        register(store, "w1")
        for width in WIDTHS:
            taken = some_inputs(store, width)
            trips = round_trips(store, tmp_path / "trace", lambda taken=taken: turn(store, taken[:FEW], 0))
            with store.database.session() as connection:
                connection.execute("VACUUM everbeat_tasks, everbeat_workflow_tasks")
            costs.append((trips, rows_touched(store, taken[FEW:])))
            store.change_workflow(WorkflowChange.CANCEL, f"flow{width}", actor="me")

    (few_trips, few_rows), (many_trips, many_rows) = costs
    assert few_trips == many_trips
    assert many_rows == pytest.approx(
        few_rows, rel=0.05
    )  # what another process keeps from being cleaned up counts, too
    assert 3 * FEW <= many_rows <= 10 * FEW


def rows_touched(store: PostgresStore, ended: Sequence[Claim]) -> int:
    """Read, by a walk through a table or by an index, or written, while these end."""
    with store.database.write() as tx:
        (before,) = tx.all(TOUCHED)
        owning.flush(tx, Flush(worker_id="w1", endings=[Ending(claim=one, verdict=completed()) for one in ended]))
        (after,) = tx.all(TOUCHED)
    return int(after[0] - before[0])
