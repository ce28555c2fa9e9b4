"""The roles of docs/postgresql.md, made by the statements on that page, and what each may do."""

import os
import re
import subprocess
import sys
import time
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
import time
from everbeat import Everbeat
app = Everbeat()

@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b

@app.task(name="hang")
def hang() -> None:
    open("begun", "w").close()
    time.sleep(600)
"""
PATIENCE = 30.0


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
def start(url: str, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    (tmp_path / "shop.py").write_text(SHOP)
    known = {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT_")}
    started: list[subprocess.Popen[str]] = []

    def start(role: str, *words: str) -> "subprocess.Popen[str]":
        ours = {
            "EVERBEAT_DATABASE_URL": as_role(url, role),
            "EVERBEAT_BROKER_SCHEMA": "everbeat",
            "EVERBEAT_STATE_DIR": str(tmp_path / "state"),
            "PYTHONPATH": str(SOURCE),
        }
        command = [sys.executable, "-P", "-m", "everbeat", *words]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=known | ours, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def command(start: Callable[..., "subprocess.Popen[str]"]) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    def run(role: str, *words: str) -> "subprocess.CompletedProcess[str]":
        process = start(role, *words)
        stdout, stderr = process.communicate(timeout=100)
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)

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


def test_a_worker_starts_after_one_that_was_killed(
    start: Callable[..., "subprocess.Popen[str]"],
    command: Callable[..., "subprocess.CompletedProcess[str]"],
    url: str,
    tmp_path: Path,
) -> None:
    assert command("owner", "db", "migrate").returncode == 0
    broker = PostgresConfig(database_url=as_role(url, "worker"), schema="everbeat")
    with Everbeat(AppConfig(broker=broker)) as app:
        handle = app.task(name="hang")(lambda: None).enqueue()
        killed = start("worker", "worker", "start", "shop:app", "--processes", "1")
        give_up = time.monotonic() + PATIENCE
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < give_up
        killed.kill()
        killed.wait()

        looked = command("reader", "queue", "recover", "--dry-run")
        assert (looked.returncode, handle.id in looked.stdout) == (0, True), looked
        worked = command("worker", "worker", "start", "shop:app", "--burst", "--processes", "1")

        assert (worked.returncode, handle.status()) == (0, "FAILED"), worked.stderr
