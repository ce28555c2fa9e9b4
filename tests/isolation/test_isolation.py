"""All orders of the statements of two or three sessions: whatever comes between, the same things are true."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import psycopg
import pytest
from tests.isolation.ground import Ground, postgres_ground, sqlite_ground
from tests.isolation.orders import every_order, some_orders
from tests.isolation.scenes import SCENES
from tests.isolation.stepping import Stage
from tests.postgres import EmptyDatabase

from everbeat.store.transaction import Row

SOME = 6
ORDERS = int(os.environ.get("EVERBEAT_ORDERS", "0"))
"""Of each scene, beside some by chance; `make soak` runs all of them, as far as there are no more than that."""


@pytest.fixture(scope="module")
def postgres(a_database: EmptyDatabase) -> Iterator[tuple[Ground, psycopg.Connection[Row]]]:
    with postgres_ground(a_database.url()) as ground:
        yield ground


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    path: Path = tmp_path_factory.mktemp("isolation") / "orders.db"
    with sqlite_ground(path) as ground:
        yield ground


@pytest.mark.parametrize("name", SCENES)
def test_statements_of_several_sessions_may_come_in_any_order(
    postgres: tuple[Ground, psycopg.Connection[Row]], name: str
) -> None:
    ground, control = postgres
    make_stage = stages(ground, name, control)
    for stage in some_orders(make_stage, seed=name, count=SOME):
        ground.check(stage)
    for stage in islice(every_order(make_stage), ORDERS):
        ground.check(stage)


@pytest.mark.parametrize("name", SCENES)
def test_transactions_of_several_sessions_may_come_in_any_order(sqlite: Ground, name: str) -> None:
    for stage in islice(every_order(stages(sqlite, name, None)), ORDERS or SOME):
        sqlite.check(stage)


def stages(ground: Ground, name: str, control: psycopg.Connection[Row] | None) -> Callable[[], Stage]:
    def make() -> Stage:
        ground.clear()
        deeds = SCENES[name](ground)
        ground.begin()
        return Stage(deeds, control)

    return make
