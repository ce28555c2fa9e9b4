"""The examples of docs/tasks.md, docs/workflows.md and docs/testing.md are run, not only read."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import everbeat

SOURCE = Path(everbeat.__file__).parents[1]
DOCS = SOURCE.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(block: str, module: ModuleType, page: str) -> None:
    exec(compile(block, f"docs/{page}", "exec"), vars(module))


@pytest.mark.parametrize(("page", "least"), [("tasks.md", 10), ("workflows.md", 6)])
def test_the_examples_of_a_page_are_one_program_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, least: int
) -> None:
    monkeypatch.chdir(tmp_path)
    first, *others = BLOCK.findall((DOCS / page).read_text())
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    run(first, module, page)

    with module.app.testing() as t:
        for block in others:
            run(block, module, page)
        t.advance(60)
        t.run_pending()

    assert len(others) >= least


def test_the_examples_about_testing_pass(tmp_path: Path) -> None:
    files = dict(FILE.findall((DOCS / "testing.md").read_text()))
    assert list(files) == ["shop.py", "test_later.py", "test_eager.py"]
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    environment = os.environ | {"PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "everbeat_pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    assert "4 passed" in done.stdout, done.stdout
    assert not (tmp_path / "jobs.db").exists()
