"""Virtual environments for peers and servers, with the versions that requirements files pin, made when needed.

They are kept in EVERBEAT_BENCH_CACHE, else in the user's cache directory, and made anew when the file has changed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS = ROOT / "bench" / "peers" / "requirements"
INSTALL_SECONDS = 900


class NotInstalled(Exception):
    """What is to be measured could not be installed here."""


def cache() -> Path:
    given = os.environ.get("EVERBEAT_BENCH_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everbeat-bench"


def environment(name: str) -> Path:
    """The python of the environment that requirements/NAME.txt describes."""
    wanted = (PEERS / f"{name}.txt").read_text()
    mark = hashlib.sha256(f"{sys.version}\n{wanted}".encode()).hexdigest()
    directory = cache() / name
    python, ready = directory / "bin" / "python", directory / "ready"
    if ready.exists() and ready.read_text() == mark:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(directory)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r",
          str(PEERS / f"{name}.txt")])  # fmt: skip
    ready.write_text(mark)
    return python


def version_of(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False, env=_without_paths()
        )
    except subprocess.TimeoutExpired as late:
        raise NotInstalled(f"installing took longer than {INSTALL_SECONDS}s") from late
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotInstalled(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")


def _without_paths() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
