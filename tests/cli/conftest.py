"""What the tests of the command line share: a real store in a temporary directory, and the command itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, Ended, HandWorker

from everbeat.cli.main import main
from everbeat.config import AppConfig, SQLiteConfig
from everbeat.store.interface import Store
from everbeat.store.open import open_store


@pytest.fixture(autouse=True)
def _bare_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("EVERBEAT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db")))) as store:
        yield store


@pytest.fixture
def everbeat(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, run in this process through the same `main` as the real one."""

    def run(*words: str) -> Ended:
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr()
        return Ended(code=code, out=said.out, err=said.err)

    return run


@pytest.fixture
def process() -> Command:
    """The command as a process of its own, with pipes instead of a terminal."""

    def run(*words: str, timeout: float = 60) -> Ended:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "everbeat", *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A command that goes on; killed at the end if the test did not stop it."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", "everbeat", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture
def hand(store: Store) -> HandWorker:
    return HandWorker(store)


SHOP = """
from everbeat import Everbeat, RetryPolicy

print("noise while the application is imported")
app = Everbeat("sqlite:///shop.db")

@app.task(name="shop.add", queue="sums", retry=RetryPolicy(max_attempts=4))
def add(a: int, b: int = 5) -> int:
    print("adding")
    return a + b
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """An application in the working directory: shop:app."""
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path / "shop.db"
