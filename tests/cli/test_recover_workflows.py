"""`everbeat queue recover` on workflows that something tore: a dry run says what is wrong, the order mends it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import pytest
from tests.cli.by_hand import Command
from tests.contract.test_flow_mending import by_hand, kill_task
from tests.contract.test_flows import nested
from tests.flow_words import FAIL, begin, end, graph, play, state, states, take
from tests.postgres import EmptyDatabase
from tests.words import register

from everbeat.config import AppConfig, PostgresConfig
from everbeat.model import event
from everbeat.store.interface import Store
from everbeat.store.open import open_store

TABLES = ("meta", "tasks", "workflows", "workflow_tasks", "workflow_calls", "events", "recovery_reports", "history")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        database: EmptyDatabase = request.getfixturevalue("a_database")
        return database.url()
    return f"sqlite:///{request.getfixturevalue('tmp_path')}/jobs.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    broker = url if url.startswith("sqlite") else PostgresConfig(database_url=url)
    with closing(open_store(AppConfig(broker=broker))) as store:
        register(store, "w1")
        yield store


def all_rows(store: Store) -> dict[str, list[Any]]:
    with cast(Any, store).database.read() as tx:
        return {table: sorted(map(repr, tx.all(f"SELECT * FROM everbeat_{table}", ()))) for table in TABLES}


# -- torn by hand -----------------------------------------------------------------------------------------------------


def not_told_of_the_end_of_a_task(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    kill_task(store, "flow:a", "FAILED", code="TASK_TIMEOUT")


def ready_without_a_task(store: Store) -> None:
    begin(store, graph(a="", b="a"))
    by_hand(store, "DELETE FROM everbeat_tasks")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = 'READY' WHERE name = 'a'")


def not_ended_with_its_nodes(store: Store) -> None:
    begin(store, graph(a="", b=""))
    play(store, {"a": FAIL})
    by_hand(store, "UPDATE everbeat_workflows SET status = 'RUNNING', finished_at = NULL")


def not_told_of_the_end_inside(store: Store) -> None:
    begin(store, *nested())
    for name in "abc":
        end(store, take(store)[name])
    by_hand(store, "DELETE FROM everbeat_tasks WHERE id = 'flow:d'")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = 'PENDING', deps_left = 1, deps_ok = 0 WHERE name = 'd'")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET status = 'RUNNING', finished_at = NULL WHERE name = 'inner'")
    by_hand(store, "UPDATE everbeat_workflows SET nodes_left = 2 WHERE id = 'flow'")


def not_told_of_the_end_of_a_task_inside(store: Store) -> None:
    begin(store, *nested())
    end(store, take(store)["a"])
    kill_task(store, "inner:b", "COMPLETED", result=b"1")


CASES: list[tuple[Callable[[Store], None], str, list[str], str]] = [
    (not_told_of_the_end_of_a_task, "node 0 was not told that its task is FAILED", [], "FAILED"),
    (ready_without_a_task, "nodes that may start were not enqueued", ["a", "b"], "COMPLETED"),
    (not_ended_with_its_nodes, "all nodes have ended, and it has not", [], "FAILED"),
    (not_told_of_the_end_inside, "node 1 was not told that its workflow is COMPLETED", ["d"], "COMPLETED"),
    (
        not_told_of_the_end_of_a_task_inside, "in inner: node 0 was not told that its task is COMPLETED",
        ["c", "d"], "COMPLETED",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tear", "wrong", "runs", "ends"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_torn_workflow_is_told_by_a_dry_run_and_mended_by_the_order(
    everbeat: Command, store: Store, url: str, tear: Callable[[Store], None], wrong: str, runs: list[str], ends: str
) -> None:
    tear(store)
    begin(store, graph("whole", x=""))
    before = all_rows(store)

    looked = everbeat("queue", "recover", "--dry-run", "--json", "--db", url)
    said = everbeat("queue", "recover", "--dry-run", "--db", url)

    assert (looked.code, said.code, all_rows(store)) == (0, 0, before)
    assert [(one["workflow_id"], one["success"]) for one in looked.json["torn_workflows"]] == [("flow", True)]
    assert wrong in looked.json["torn_workflows"][0]["reason"]
    assert "Torn Workflows: 1\n  - flow: would go on (" in said.out
    assert wrong in said.out

    done = everbeat("queue", "recover", "--db", url)

    assert (done.code, "Torn Workflows: 1\n  - flow: goes on (" in done.out, wrong in done.out) == (0, True, True)
    assert [one.facts["workflow"] for one in store.events() if one.name == event.WORKFLOW_MENDED] == ["flow"]
    assert everbeat("queue", "recover", "--json", "--db", url).json["torn_workflows"] == []
    assert [name for name in play(store) if name != "x"] == runs
    assert (state(store), state(store, "whole")) == (ends, "COMPLETED")


def test_one_that_can_not_be_mended_is_told_with_the_reason_and_holds_up_no_other(
    everbeat: Command, store: Store, url: str
) -> None:
    for name in ("a-good", "bad", "z-good"):
        begin(store, graph(name, a="", b="", c="a b"))
        end(store, take(store)["a"])
        kill_task(store, f"{name}:b", "COMPLETED", result=b"1")
    by_hand(store, "UPDATE everbeat_workflow_tasks SET condition = 'no json' WHERE workflow_id = 'bad' AND name = 'c'")
    before = all_rows(store)

    looked = everbeat("queue", "recover", "--dry-run", "--json", "--db", url).json["torn_workflows"]
    said = everbeat("queue", "recover", "--dry-run", "--db", url).out
    assert all_rows(store) == before
    done = everbeat("queue", "recover", "--json", "--db", url).json["torn_workflows"]

    assert [(one["workflow_id"], one["success"]) for one in looked] == [
        ("a-good", True), ("z-good", True), ("bad", False),
    ]  # fmt: skip
    assert "  - bad: can not be mended (a condition is not understood: no json)" in said
    assert done == looked
    assert (states(store, "a-good")["c"], states(store, "bad")["c"]) == ("ENQUEUED", "PENDING")
    (again,) = everbeat("queue", "recover", "--dry-run", "--json", "--db", url).json["torn_workflows"]
    assert (again["workflow_id"], again["success"]) == ("bad", False)


def test_a_check_of_the_store_names_what_is_torn_until_it_is_mended(everbeat: Command, store: Store, url: str) -> None:
    begin(store, graph("poison", a="", b="", c="a b"))
    end(store, take(store)["a"])
    for number in range(12):
        begin(store, graph(f"flow-{number:02}", a="", b="a"))
        kill_task(store, f"flow-{number:02}:a", "COMPLETED", result=b"1")
    kill_task(store, "poison:b", "COMPLETED", result=b"1")
    by_hand(
        store, "UPDATE everbeat_workflow_tasks SET condition = 'no json' WHERE workflow_id = 'poison' AND name = 'c'"
    )
    before = all_rows(store)

    checked = everbeat("db", "check", "--json", "--db", url)

    told = [said for said in checked.json["errors"] if "torn" in said]
    assert (checked.code, len(told), all_rows(store)) == (1, 12, before)
    assert told[0] == "workflow flow-00 is torn: node 0 was not told that its task is COMPLETED; recovery mends it"
    assert told[-2] == "workflow poison is torn and can not be mended: a condition is not understood: no json"
    assert told[-1] == "2 more workflows are torn; queue recover --dry-run lists them"
    everbeat("queue", "recover", "--db", url)
    assert [said.split()[1] for said in everbeat("db", "check", "--json", "--db", url).json["errors"]] == ["poison"]


def test_the_report_of_a_recovery_keeps_what_was_torn(everbeat: Command, store: Store, url: str) -> None:
    not_told_of_the_end_of_a_task(store)

    done = everbeat("queue", "recover", "--json", "--db", url).json

    assert everbeat("queue", "recovery-report", "--json", "--db", url).json["torn_workflows"] == done["torn_workflows"]
    assert "flow: goes on (node 0" in everbeat("queue", "recovery-report", "--db", url).out
