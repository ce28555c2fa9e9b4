"""The commands on a PostgreSQL store: each does its work, or says what to do instead."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.cli.by_hand import Command, HandWorker, send
from tests.cli.test_workflow import check_that_what_is_over_stays_so
from tests.postgres import NEWEST, EmptyDatabase, binaries
from tests.words import register

from everbeat.config import AppConfig, PostgresConfig
from everbeat.store.interface import Store
from everbeat.store.messages import TaskFilter
from everbeat.store.open import open_store

PAGE = (Path(__file__).parents[2] / "docs/postgresql.md").read_text()
BACKUP = PAGE.split("\n## Backup and restore\n")[1].split("\n## ")[0]
(DUMP,) = re.findall(r"^pg_dump .*$", BACKUP, re.MULTILINE)
(RESTORE,) = re.findall(r"`(pg_restore .*?)`", BACKUP)
(RENEW,) = re.findall(r"SET search_path.*?UPDATE everbeat_meta.*?;", BACKUP, re.DOTALL)
LOOKS = (
    "queue status", "queue recovery-status", "queue recovery-report", "worker list --show-heartbeat", "task list",
    "quarantine list", "events", "workflow list", "metrics", "db check", "db migrate --check", "db checkpoint",
)  # fmt: skip


@pytest.fixture
def url(a_database: EmptyDatabase) -> str:
    return a_database.url()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(AppConfig(broker=PostgresConfig(database_url=url)))) as store:
        yield store


def test_a_database_without_tables_says_what_to_do(everbeat: Command, url: str) -> None:
    looked = everbeat("queue", "status", "--db", url)
    assert (looked.code, "everbeat db migrate" in looked.err) == (3, True)
    assert everbeat("db", "migrate", "--check", "--db", url).code == 1
    script = everbeat("db", "migrate", "--sql", "--db", url).out

    with psycopg.connect(url) as connection:
        connection.execute(script.encode())

    assert "current" in everbeat("db", "migrate", "--check", "--db", url).out
    assert everbeat("db", "migrate", "--db", url).code == 0


@pytest.mark.parametrize("look", LOOKS)
def test_everything_can_be_looked_at(everbeat: Command, store: Store, url: str, look: str) -> None:
    send(store)

    ended = everbeat(*look.split(), "--json", "--db", url)

    assert (ended.code, ended.err) == (0, "")


def test_the_time_of_the_store_is_that_of_the_server(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    with psycopg.connect(url, autocommit=True) as connection:
        (before,) = connection.execute("SELECT clock_timestamp()").fetchone() or ()
        now = store.now()
        (after,) = connection.execute("SELECT clock_timestamp()").fetchone() or ()

    assert before <= now <= after


def test_a_task_goes_through_the_hands_of_a_person(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    task_id = send(store)

    def order(*words: str) -> str:
        ended = everbeat(*words, "--db", url)
        assert ended.code == 0, ended.err
        return ended.out

    order("task", "cancel", task_id)
    assert "CANCELLED" in order("task", "show", task_id)
    order("task", "retry", task_id)
    order("task", "fail", task_id)
    assert "FAILED" in order("task", "history", task_id)
    order("task", "erase", task_id)
    order("queue", "pause", "mail")
    order("queue", "resume", "mail")
    order("queue", "recover")
    order("task", "purge", task_id, "--yes")
    assert order("task", "list", "--json").strip() == "[]"


def test_a_task_whose_workflow_is_over_is_not_retried_and_it_is_said_why(
    everbeat: Command, store: Store, url: str
) -> None:
    register(store, "w1")

    check_that_what_is_over_stays_so(everbeat, store, url)


def test_a_copy_is_made_and_put_back_as_the_page_says(
    everbeat: Command, store: Store, url: str, tmp_path: Path
) -> None:
    task_id, store_id = send(store), store.store_id
    for command in (("backup", "x"), ("restore", "x", "--yes")):
        refused = everbeat("db", *command, "--db", url)
        assert (refused.code, "docs/postgresql.md" in refused.err) == (1, True)

    shell(DUMP, url, tmp_path)
    send(store)
    store.close()
    shell(RESTORE, url, tmp_path)
    with psycopg.connect(url) as connection:
        connection.execute(RENEW.encode())

    with closing(open_store(AppConfig(broker=PostgresConfig(database_url=url)))) as restored:
        assert restored.store_id != store_id
        assert [task.id for task in restored.tasks(TaskFilter())] == [task_id]
    assert everbeat("db", "check", "--db", url).code == 0


def test_a_copy_of_a_schema_of_its_own_is_put_into_another_database(
    everbeat: Command, a_database: EmptyDatabase, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERBEAT_BROKER_SCHEMA", "everbeat")
    with closing(open_store(AppConfig(broker=PostgresConfig(database_url=url, schema="everbeat")))) as store:
        task_id, store_id = send(store), store.store_id
    shell(DUMP, url, tmp_path)
    (make_schema,) = re.findall(r"`(CREATE SCHEMA .*?)`", BACKUP)
    other = a_database.another("restored")

    with psycopg.connect(other) as connection:
        connection.execute(make_schema.encode())
    shell(RESTORE, other, tmp_path)
    with psycopg.connect(other) as connection:
        connection.execute(RENEW.encode())

    with closing(open_store(AppConfig(broker=PostgresConfig(database_url=other, schema="everbeat")))) as restored:
        assert restored.store_id != store_id
        assert [task.id for task in restored.tasks(TaskFilter())] == [task_id]
        assert send(restored) != task_id
    assert everbeat("db", "check", "--db", other).code == 0


def shell(command: str, url: str, directory: Path) -> None:
    path = f"{binaries(NEWEST)}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "EVERBEAT_DATABASE_URL": url}
    done = subprocess.run(
        command, shell=True, env=environment, cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
