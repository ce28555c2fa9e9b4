"""The roles of docs/postgresql.md, made by the statements on that page, and what each may do."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.postgres import EmptyDatabase

import everbeat
from everbeat import AppConfig, Everbeat, PostgresConfig, StoreUnavailable, Workflow

SOURCE = Path(everbeat.__file__).parents[1]
PAGE = (SOURCE.parent / "docs/postgresql.md").read_text()
ROLES = ("owner", "worker", "producer", "reader")
SETUP, GRANTS = re.findall(r"^```sql\n(.*?)^```$", PAGE.split("\n## Roles\n")[1].split("\n## ")[0], re.M | re.S)

SHOP = """
from everbeat import Everbeat
app = Everbeat()

@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b
"""


def named(text: str) -> str:
    """Roles belong to the whole server, which other tests use at the same time."""
    return re.sub(rf"\beverbeat_({'|'.join(ROLES)})\b", rf"everbeat_{os.getpid()}_\1", text)


@pytest.fixture
def url(a_database: EmptyDatabase) -> Iterator[str]:
    """Of the administrator."""
    url = a_database.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(named(SETUP))
    yield url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA everbeat CASCADE")
        for role in ROLES:
            connection.execute(named(f"DROP OWNED BY everbeat_{role}; DROP ROLE everbeat_{role}"))


@pytest.fixture
def command(url: str, tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    (tmp_path / "shop.py").write_text(SHOP)
    known = {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT_")}

    def run(role: str, *words: str) -> "subprocess.CompletedProcess[str]":
        ours = {
            "EVERBEAT_DATABASE_URL": as_role(url, role),
            "EVERBEAT_BROKER_SCHEMA": "everbeat",
            "EVERBEAT_STATE_DIR": str(tmp_path / "state"),
            "PYTHONPATH": str(SOURCE),
        }
        command = [sys.executable, "-P", "-m", "everbeat", *words]
        return subprocess.run(
            command, env=known | ours, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )

    return run


def as_role(url: str, role: str) -> str:
    place = urlsplit(url).netloc.rpartition("@")[2]
    return urlsplit(url)._replace(netloc=f"{named(f'everbeat_{role}')}@{place}").geturl()


def test_each_role_can_do_its_work_and_no_more(
    command: Callable[..., "subprocess.CompletedProcess[str]"], url: str
) -> None:
    refused = command("worker", "db", "migrate")
    assert (refused.returncode, "permission denied" in refused.stderr) == (3, True)
    migrated = command("owner", "db", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(named(GRANTS))

    broker = PostgresConfig(database_url=as_role(url, "producer"), schema="everbeat")
    with Everbeat(AppConfig(broker=broker)) as app:
        add = app.task(name="add")(lambda a, b: a + b)
        handles = add.enqueue_many([(1, 2), (3, 4)])
        add.options(unique_key="x", exclusive_key="y", delay=1000).enqueue(5, 6)
        cancelled = add.options(delay=1000).enqueue(0, 0)
        assert cancelled.cancel()
        with psycopg.connect(as_role(url, "producer")) as own:
            handles.append(add.options(connection=own).enqueue(7, 8))
        flow = Workflow("sum")
        flow.add(add, flow.add(add, 1, 2), 3)
        run = flow.start(app)

        worked = command("worker", "worker", "start", "shop:app", "--burst", "--processes", "1")
        assert worked.returncode == 0, worked.stderr

        assert [handle.result(timeout=0) for handle in handles] == [3, 7, 15]
        assert run.status() == "COMPLETED"
    seen = command("reader", "task", "list", "--json")
    assert (seen.returncode, seen.stdout.count('"COMPLETED"')) == (0, 5)
    checked = command("reader", "db", "check")
    assert checked.returncode == 0, checked.stdout

    broker = PostgresConfig(database_url=as_role(url, "reader"), schema="everbeat")
    with Everbeat(AppConfig(broker=broker)) as app, pytest.raises(StoreUnavailable, match="permission denied"):
        app.task(name="add")(lambda a, b: a + b).enqueue(1, 2)
