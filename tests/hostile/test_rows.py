"""Rows written by hand: whatever stands in a column, commands answer, a worker works, recovery goes on.

A row that makes no sense is passed over, quarantined or failed; the sound tasks beside it all come to their end.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import PLACE
from tests.hostile import commands, rows
from tests.hostile.rows import Hand, PostgresHand, SQLiteHand
from tests.postgres import EmptyDatabase

from everbeat import Everbeat
from everbeat.cli.main import main
from everbeat.config import AppConfig

ROOT = Path(__file__).parents[2]
TABLES = rows.tables_of_the_schema()
SOUND = 20


@pytest.fixture(scope="session")
def furnished_file(tmp_path_factory: pytest.TempPathFactory) -> SQLiteHand:
    hand = SQLiteHand(tmp_path_factory.mktemp("furnished") / "jobs.db")
    rows.furnish(hand)
    return hand


@pytest.fixture(scope="session")
def furnished_database(a_database: EmptyDatabase) -> PostgresHand:
    hand = PostgresHand(a_database.another("furnished"))
    rows.furnish(hand)
    return hand


@pytest.fixture(params=["sqlite", "postgres"])
def hand(request: pytest.FixtureRequest, tmp_path: Path) -> Hand:
    """Of somebody with a furnished store."""
    if request.param == "sqlite":
        return SQLiteHand(shutil.copy(request.getfixturevalue("furnished_file").path, tmp_path / "jobs.db"))
    furnished = request.getfixturevalue("furnished_database")
    return PostgresHand(request.getfixturevalue("a_database").another("hostile", like=furnished.url))


@pytest.fixture(autouse=True)
def _bare_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("EVERBEAT_") and name != PLACE]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


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
        rows.start_workflow(app, "sound")
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


@dataclass(slots=True, eq=False)
class HardyWorker:
    process: "subprocess.Popen[bytes]"
    hand: Hand
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until_it_has_beaten(self, times: int) -> None:
        """So often since it was asked, which takes as many seconds: every loop of it has turned meanwhile."""
        wanted = self._beats() + times
        self.until(lambda: self._beats() >= wanted, "it has beaten")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + 60
        while not condition():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < give_up, f"waited in vain until {what}: {self.said()}"
            time.sleep(0.1)

    def _beats(self) -> int:
        return int(self.hand.ask("SELECT max(beat_seq) FROM everbeat_workers WHERE name = 'hardy'")[0][0] or 0)


@contextmanager
def a_worker(hand: Hand, log: Path) -> Iterator[HardyWorker]:
    """Stopped by SIGTERM at the end."""
    words = ["worker", "start", "tests.hostile.apps:app", "--db", hand.url, "--name", "hardy",
             "--processes", "2", "--drain-timeout", "1"]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "everbeat", *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file,
            stderr=file,
        )  # fmt: skip
    worker = HardyWorker(process, hand, log)
    try:
        yield worker
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
