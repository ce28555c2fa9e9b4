"""Rows written by hand: whatever stands in a column, commands answer, a worker works, recovery goes on.

A row that makes no sense is passed over, quarantined or failed; the sound tasks beside it all come to their end.
"""

import json
from contextlib import closing
from pathlib import Path

import pytest
from tests.hostile import commands, flows, rows
from tests.hostile.rows import Hand
from tests.hostile.workers import a_worker

from everbeat import Everbeat
from everbeat.cli.main import main
from everbeat.config import AppConfig

TABLES = rows.tables_of_the_schema()
SOUND = 20


def test_every_table_is_tried_in_every_column(hand: Hand) -> None:
    assert list(hand.tables()) == TABLES
    for table, taken in rows.spread(hand, TABLES).items():
        free = [column for column in hand.tables()[table] if not column.is_given]
        assert taken >= 2 * len(free), f"{table} took {taken} rows"


def test_a_fence_may_be_null(hand: Hand) -> None:
    rows.spread(hand, ["everbeat_tasks"])

    assert hand.ask("SELECT count(*) > 0 FROM everbeat_tasks WHERE fence IS NULL") == [(True,)]


@pytest.mark.parametrize("table", TABLES)
def test_no_command_fails_without_a_clear_word(hand: Hand, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows.spread(hand, [table])
    for words in commands.calls():
        code = main([*words, "--db", hand.url])

        said = capsys.readouterr()
        assert code in (0, 1), f"{words} ended with {code}: {said.err}"
        assert "Traceback" not in said.err
        if "--json" in words and code == 0:
            assert json.loads(said.out) is not None


@pytest.mark.parametrize(
    ("table", "column", "key"),
    [
        ("everbeat_workflows", "status", "id"),
        ("everbeat_workflows", "on_error", "id"),
        ("everbeat_workflow_tasks", "status", "workflow_id"),
        ("everbeat_workflow_tasks", "kind", "workflow_id"),
    ],
)
def test_a_workflow_that_makes_no_sense_is_told_of_and_stops_nobody_else(
    hand: Hand, table: str, column: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Everbeat(AppConfig(broker=hand.broker)) as app:
        flows.plain(flows.tasks_of(app)).start(app, id="sound")
    with hand.writing() as pen:
        pen.write(f"UPDATE {table} SET {column} = 'nonsense' WHERE {key} = 'flow'")

    for words in commands.calls():
        if words[0] == "workflow":
            code = main([*words, "--db", hand.url])
            said = capsys.readouterr()
            assert code in (0, 1), f"{words} ended with {code}: {said.err}"
            assert "Traceback" not in said.err
    assert main(["workflow", "list", "--json", "--db", hand.url]) == 0
    assert "sound" in {one["id"] for one in json.loads(capsys.readouterr().out)}


def test_only_commands_that_are_there_are_left_out() -> None:
    assert commands.LEAVES.keys() > commands.ALONE
    assert commands.OF.keys() < commands.LEAVES.keys()


@pytest.mark.parametrize("among", [["everbeat_tasks"], [table for table in TABLES if table != "everbeat_tasks"]],
                         ids=["tasks", "others"])  # fmt: skip
def test_a_worker_and_its_recovery_go_on_among_hostile_rows(hand: Hand, tmp_path: Path, among: list[str]) -> None:
    rows.spread(hand, among)
    if "everbeat_health" in among:
        with hand.writing() as pen:
            pen.spoil("everbeat_health", "healthy_since_mono")
            pen.spoil("everbeat_clock", "wall_offset")
            pen.spoil("everbeat_roles", "until_mono")
    with closing(Everbeat(AppConfig(broker=hand.broker))) as app, a_worker(hand, tmp_path / "log") as worker:
        add = app.task(name="add")(_add)
        handles = add.enqueue_many([add.args(number, 1) for number in range(SOUND)])

        results = [handle.result(timeout=60) for handle in handles]

        assert results == [number + 1 for number in range(SOUND)]
        worker.until(lambda: app.handle("running").status().is_terminal, "the orphan of a silent worker was recovered")
        worker.until_it_has_beaten(4)
    assert worker.process.returncode == 0, worker.said()
    assert "loop.failed" not in worker.said()


def _add(a: int, b: int) -> int:
    return a + b
