"""What a person is told when a PostgreSQL store can not be used: one line, what to do, exit code 3, and no password."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.postgres import Cluster

from everbeat.store.postgres.store import PostgresStore

SECRET = "correct-horse"
APP = """
from everbeat import Everbeat

app = Everbeat(URL)


@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture(scope="session")  # once for a server: workers of the test run may come back to this module
def guarded(server: Cluster) -> Cluster:
    """It asks everybody but its superuser for a password."""
    rules = server.directory / "data" / "pg_hba.conf"
    rules.write_text(
        "host all everbeat,everbear,everbeaten 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    )
    os.kill(server.pid, signal.SIGHUP)
    server.sql(f"CREATE ROLE clerk LOGIN PASSWORD '{SECRET}'")
    server.sql("CREATE DATABASE shop")
    server.sql("CREATE DATABASE bare")
    server.sql("REVOKE CREATE ON SCHEMA public FROM public", database="bare")
    server.sql("CREATE DATABASE private")
    server.sql("REVOKE CONNECT ON DATABASE private FROM public")
    server.sql("CREATE ROLE everbeaten LOGIN")
    server.sql("ALTER ROLE everbeaten SET search_path = nowhere")
    PostgresStore(server.url("shop")).close()
    return server


@pytest.fixture
def old_server() -> Iterator[int]:
    """A server that says it is PostgreSQL 13, and nothing else; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_greet, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


def _greet(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            with client:
                while struct.unpack("!II", client.recv(4096)[:8])[1] != 196608:  # the version of the protocol
                    client.sendall(b"N")
                said = b"server_version\x0013.4\x00"
                client.sendall(b"R" + struct.pack("!II", 8, 0) + b"S" + struct.pack("!I", 4 + len(said)) + said)
                client.sendall(b"K" + struct.pack("!III", 12, 1, 1) + b"Z" + struct.pack("!I", 5) + b"I")
                client.recv(4096)


def said_by(tmp_path: Path, url: str, *words: str, path: str = "", schema: str = "") -> tuple[int, str]:
    """The exit code of the command, and all that it said."""
    (tmp_path / "shop.py").write_text(APP.replace("URL", repr(url)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT_")}
    environment = kept | {"EVERBEAT_STATE_DIR": str(tmp_path / "state")}
    if schema:
        environment["EVERBEAT_BROKER_SCHEMA"] = schema
    if path:
        environment["PYTHONPATH"] = f"{path}:{environment.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "everbeat", *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


CASES = {
    "wrong password": (f"clerk:{SECRET}x@127.0.0.1:PORT/shop", "Check user and password in the database URL"),
    "no password": ("clerk@127.0.0.1:PORT/shop", "Check user and password in the database URL"),
    "unknown user": (f"nobody:{SECRET}@127.0.0.1:PORT/shop", "Check user and password in the database URL"),
    "unknown host": (f"clerk:{SECRET}@no-such-host.invalid:PORT/shop", "Check the host in the database URL"),
    "nobody listens": (f"clerk:{SECRET}@127.0.0.1:1/shop", "Start the server, or check host and port"),
    "nobody listens at any address": (f"clerk:{SECRET}@localhost:1/shop", "Start the server, or check host and port"),
    "nobody listens at a socket": ("clerk@/shop?host=/nowhere&port=PORT", "Start the server, or check host and port"),
    "nobody of that name": (f"everbear:{SECRET}@127.0.0.1:PORT/shop", "Create it, or check the user"),
    "a setting that is none": (f"clerk:{SECRET}@127.0.0.1:PORT/shop?sslmood=x", "Check the database URL"),
    "no database": (f"clerk:{SECRET}@127.0.0.1:PORT/shpo", 'database "shpo" does not exist. Create it'),
    "a setting without sense": (f"clerk:{SECRET}@127.0.0.1:PORT/shop?sslmode=maybe", "Check the database URL"),
    "no such service": (f"clerk:{SECRET}@127.0.0.1:PORT/shop?service=none", "Check the database URL"),
    "a setting unknown to the server": (
        f"clerk:{SECRET}@127.0.0.1:PORT/shop?options=-c%20mood%3D1",
        "Check options in the database URL",
    ),
    "a value unknown to the server": (
        f"clerk:{SECRET}@127.0.0.1:PORT/shop?options=-c%20work_mem%3Dx",
        "Check options in the database URL",
    ),
    "no right to connect": (f"clerk:{SECRET}@127.0.0.1:PORT/private", "GRANT CONNECT ON DATABASE"),
    "no privileges": (f"clerk:{SECRET}@127.0.0.1:PORT/shop", "GRANT SELECT, INSERT, UPDATE, DELETE"),
}


@pytest.mark.parametrize(("url", "advice"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("command", ["queue", "worker"])
def test_what_is_wrong_with_the_server_is_one_line_with_advice(
    guarded: Cluster, tmp_path: Path, url: str, advice: str, command: str
) -> None:
    url = f"postgresql://{url.replace('PORT', str(guarded.port))}"
    words = ["queue", "status", "--db", url] if command == "queue" else ["worker", "start", "shop:app"]
    if command == "worker" and advice.startswith("Start the server"):
        words.append("--burst")  # any other worker waits for it

    code, said = said_by(tmp_path, url, *words)

    assert code == 3, said
    assert advice in said
    assert SECRET not in said
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if line.startswith("everbeat: ")]) == 1


def test_a_user_who_may_not_make_the_tables_is_told_what_is_needed(guarded: Cluster, tmp_path: Path) -> None:
    url = f"postgresql://clerk:{SECRET}@127.0.0.1:{guarded.port}/bare"

    code, said = said_by(tmp_path, url, "worker", "start", "shop:app", "--burst")

    assert code == 3, said
    assert "GRANT USAGE, CREATE ON SCHEMA" in said
    assert SECRET not in said


def test_a_user_who_may_not_make_the_schema_is_told_what_is_needed(guarded: Cluster, tmp_path: Path) -> None:
    url = f"postgresql://clerk:{SECRET}@127.0.0.1:{guarded.port}/bare"

    code, said = said_by(tmp_path, url, "worker", "start", "shop:app", schema="queue")

    assert code == 3, said
    assert "GRANT CONNECT ON DATABASE to this user, and CREATE if" in said


def test_a_user_whose_search_path_leads_nowhere_is_told_what_to_set(guarded: Cluster, tmp_path: Path) -> None:
    url = f"postgresql://everbeaten@127.0.0.1:{guarded.port}/bare"

    code, said = said_by(tmp_path, url, "worker", "start", "shop:app")

    assert code == 3, said
    assert "EVERBEAT_BROKER_SCHEMA" in said


def test_a_database_without_tables_is_not_filled_by_a_command_that_only_looks(guarded: Cluster, tmp_path: Path) -> None:
    url = guarded.url("bare")

    code, said = said_by(tmp_path, url, "queue", "status", "--db", url)

    assert code == 3
    assert "has no tables of Everbeat. Nothing was changed. Run: everbeat db migrate" in said
    assert guarded.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database="bare") == [(0,)]


def test_a_server_that_is_too_old_is_named(old_server: int, tmp_path: Path) -> None:
    url = f"postgresql://clerk:{SECRET}@127.0.0.1:{old_server}/shop"

    code, said = said_by(tmp_path, url, "queue", "status", "--db", url)

    assert code == 3, said
    assert "PostgreSQL 14 or newer is needed, this is 13" in said
    assert SECRET not in said


def test_a_missing_driver_is_named_with_what_installs_it(tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "psycopg.py").write_text("raise ImportError('no psycopg here')\n")
    url = f"postgresql://clerk:{SECRET}@127.0.0.1:1/shop"

    code, said = said_by(tmp_path, url, "queue", "status", "--db", url, path=str(tmp_path / "without"))

    assert code == 2, said
    assert "pip install 'everbeat[postgres]'" in said
    assert SECRET not in said


def test_a_user_without_special_rights_works_with_tables_that_it_was_given(guarded: Cluster, tmp_path: Path) -> None:
    guarded.sql("CREATE ROLE worker LOGIN PASSWORD 'work'")
    guarded.sql("CREATE DATABASE ours OWNER worker")
    url = f"postgresql://worker:work@127.0.0.1:{guarded.port}/ours"
    with closing(PostgresStore(url)):
        code, said = said_by(tmp_path, url, "worker", "start", "shop:app", "--burst")

    assert code == 0, said


def test_the_files_beside_a_store_are_where_they_were_after_its_password_was_changed(
    guarded: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts with the new one finds what the last one left."""
    monkeypatch.setenv("EVERBEAT_STATE_DIR", str(tmp_path))
    urls = (guarded.url("shop"), f"{guarded.url('shop')}?application_name=other")
    with closing(PostgresStore(urls[0])) as one, closing(PostgresStore(urls[1])) as other:
        assert one.state_directory == other.state_directory
