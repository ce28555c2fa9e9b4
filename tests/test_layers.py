"""The shape of the code, held by test: imports go one way, decisions are pure, and few modules touch certain files."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import everbeat

SOURCE = Path(everbeat.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

MAY_IMPORT = {
    "model": {"model"},
    "decide": {"decide", "model"},
    "store": {
        "store",
        "decide",
        "model",
        "aside",
        "config",
        "clock",
        "crashpoint",
        "errors",
        "filesystem",
        "private",
        "secrecy",
    },
    "config": {"config", "model", "errors", "ids", "secrecy"},
    "report": {"report", "store", "model", "errors", "decide", "secrecy"},
    "run": {
        "run",
        "report",
        "store",
        "decide",
        "model",
        "config",
        "clock",
        "crashpoint",
        "current",
        "errors",
        "filesystem",
        "hooks",
        "ids",
        "private",
        "secrecy",
    },
}
IMPURE = {"time", "random", "secrets", "os", "threading", "sqlite3", "logging", "socket", "subprocess", "asyncio"}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_go_one_way(layer: str) -> None:
    own = {name for path in MODULES if layer_of(path) == layer for name in imports_of(path)}
    used = {name.split(".")[1] for name in own if name.startswith("everbeat.")} - {"__version__"}

    assert used <= MAY_IMPORT[layer]


@pytest.mark.parametrize("layer", ["model", "decide"])
def test_nouns_and_decisions_know_no_clock_no_chance_and_no_machine(layer: str) -> None:
    used = {name.split(".")[0] for path in MODULES if layer_of(path) == layer for name in imports_of(path)}

    assert not used & IMPURE


def test_sql_is_written_in_the_store_only() -> None:
    elsewhere = [path for path in MODULES if layer_of(path) != "store" and "everbeat_tasks" in path.read_text()]

    assert not elsewhere


def test_what_people_and_monitoring_read_is_not_counted_by_the_clock_of_the_machine_that_looks() -> None:
    clocks = ("datetime.now(", "time.time", "SystemClock")
    own = [path for path in MODULES if layer_of(path) in {"cli", "report"}]

    asking = {path.relative_to(SOURCE).as_posix() for path in own if any(word in path.read_text() for word in clocks)}

    assert asking == {"cli/demo.py"}  # which plays on this machine only


def test_only_the_connection_opens_the_database_and_only_the_lock_module_opens_lock_files() -> None:
    """Closing any descriptor of these files drops the POSIX locks of the whole process (PROTOCOL 11)."""
    opening = {path.relative_to(SOURCE).as_posix() for path in MODULES if "sqlite3.connect(" in path.read_text()}
    locking = {path.relative_to(SOURCE).as_posix() for path in MODULES if "fcntl.lockf(" in path.read_text()}
    naming = {
        path.relative_to(SOURCE).as_posix()
        for path in MODULES
        if any(word in path.read_text() for word in ("-wal", "-shm")) and "open(" in path.read_text()
    }

    assert opening == {"store/sqlite/connection.py", "store/sqlite/integrity_probe.py"}  # a process of its own
    assert locking == {"run/lockfile.py"}
    assert naming <= {"store/sqlite/connection.py", "store/sqlite/bells.py"}
