"""What workflows cost on SQLite: no statement walks a table, and a wide join costs what its own edges cost."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.flow_words import begin, end, graph, take
from tests.store.test_plans import explain, steps
from tests.words import register

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
)

MODULES = (flow_advance, flow_args, flow_blame, flow_ends, flow_hold, flow_look, flow_mend, flow_orders, flow_ready,
           flow_reopen, flow_rows)  # fmt: skip

GROUPED = "SCAN ended"
"""Not a table, but the inputs that have just ended, counted."""


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
        sql: plan for sql, plan in plans.items() if any(step.startswith("SCAN") and step != GROUPED for step in plan)
    }


def test_ending_some_inputs_of_a_join_costs_the_same_however_many_it_has(store: SQLiteStore) -> None:
    costs = []
    for width in (200, 2_000):
        inputs = {f"n{number}": "" for number in range(width)}
        begin(store, graph(f"flow{width}", **inputs, join=" ".join(inputs)))
        taken = list(take(store, places=width).values())
        costs.append(steps(store, lambda taken=taken: end(store, *taken[:50])))
        end(store, *taken[50:])
        end(store, *take(store).values())

    assert costs[1] <= costs[0] * 1.2 + 5
