"""The examples are run as their users would run them: in their directory, with a real worker, on a real database."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.postgres import EmptyDatabase

import everbeat

SOURCE = Path(everbeat.__file__).parents[1]
EXAMPLES = SOURCE.parent / "examples"

ASK_FASTAPI = """
from fastapi.testclient import TestClient
from shop import api

with TestClient(api) as client:
    refused = client.post("/orders", params={"item": "nothing"})
    assert refused.status_code == 422, refused.text
    assert client.get("/tasks/unknown").status_code == 404
    ordered = client.post("/orders", params={"item": "a cat"}).json()
    print(client.get(f"/tasks/{ordered['task']}", params={"wait": 30}).json()["result"])
"""

ASK_DJANGO = """
import os

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django

django.setup()
from django.test import Client
from shop.models import Order
from shop.tasks import make_receipt

client = Client()
assert client.post("/orders", {"item": "nothing"}).status_code == 422
assert Order.objects.count() == 0
assert client.get("/tasks/unknown").status_code == 404
ordered = client.post("/orders", {"item": "a cat"}).json()
print(make_receipt.handle(ordered["task"]).result(timeout=60))
assert client.get(f"/tasks/{ordered['task']}").json() == {"status": "COMPLETED"}
assert Order.objects.get().receipt.endswith("a cat")
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def environment(a_database: EmptyDatabase, tmp_path: Path) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("EVERBEAT_")}
    ours = {"EVERBEAT_DATABASE_URL": a_database.url(), "EVERBEAT_STATE_DIR": str(tmp_path / "state")}
    return known | ours | {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def start_worker(environment: dict[str, str]) -> Iterator[Callable[[Path, str], None]]:
    running: list[subprocess.Popen[str]] = []

    def start(directory: Path, application: str) -> None:
        command = [sys.executable, "-P", "-m", "everbeat", "worker", "start", application, "--processes", "1"]
        worker = subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)
        running.append(worker)
        assert worker.stdout is not None
        assert any(line.strip() == "ready" for line in worker.stdout)

    yield start
    for worker in running:
        worker.terminate()
        worker.communicate()


def python(directory: Path, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fastapi(environment: dict[str, str], start_worker: Callable[[Path, str], None]) -> None:
    directory = EXAMPLES / "fastapi"
    start_worker(directory, "shop:app")

    assert python(directory, environment, "-c", ASK_FASTAPI).endswith(": a cat\n")


def test_django(environment: dict[str, str], start_worker: Callable[[Path, str], None]) -> None:
    directory = EXAMPLES / "django"
    python(directory, environment, "manage.py", "migrate", "--verbosity", "0")
    python(directory, environment, "manage.py", "makemigrations", "--check", "--verbosity", "0")
    start_worker(directory, "shop.tasks:app")

    assert python(directory, environment, "-c", ASK_DJANGO).endswith(": a cat\n")
