"""The tables are changed while workers and senders of the version before are at work."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.postgres import EmptyDatabase

import everbeat
from everbeat import Everbeat, SchemaMismatch
from everbeat.store import schema
from everbeat.store.postgres.maintenance import PostgresMaintenance

SOURCE = Path(everbeat.__file__).parents[1]
STEP_2 = "ALTER TABLE everbeat_tasks ADD COLUMN later TEXT;\nCREATE TABLE everbeat_later (id INTEGER PRIMARY KEY);\n"

SHOP = """
from everbeat import Everbeat
app = Everbeat()

@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b
"""


def test_workers_and_senders_that_run_go_on_and_those_that_start_are_told(
    a_database: EmptyDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    url = a_database.url()
    app = Everbeat(url)
    add = app.task(name="add")(lambda a, b: a + b)
    command = [sys.executable, "-P", "-m", "everbeat", "worker", "start", "shop:app", "--processes", "1"]
    ours = {"PYTHONPATH": str(SOURCE), "EVERBEAT_DATABASE_URL": url, "EVERBEAT_STATE_DIR": str(tmp_path / "state")}
    worker = subprocess.Popen(command, env=os.environ | ours, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    with closing(app):
        try:
            assert worker.stdout is not None
            assert any(line.strip() == "ready" for line in worker.stdout)
            assert add.enqueue(1, 2).result(timeout=60) == 3

            with monkeypatch.context() as newer:
                known = schema.steps()
                newer.setattr(schema, "steps", lambda: [*known, (2, STEP_2)])
                done = PostgresMaintenance(url, None, patience=30.0).migrate()

            assert (done.found, done.newest) == (1, 2)
            assert add.enqueue(3, 4).result(timeout=60) == 7
            with pytest.raises(SchemaMismatch, match="Upgrade Everbeat"):
                Everbeat(url).open()
        finally:
            worker.terminate()
            worker.communicate()
    assert worker.returncode == 0
