"""The examples of the README are run, not only read."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)


def test_the_example_is_the_file_in_examples() -> None:
    assert [(ROOT / "examples/tasks.py").read_text()] == BLOCKS


def test_the_example_runs_as_the_readme_says(started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(BLOCKS[0])
    worker = started("worker", "start", "tasks:app", "--processes", "1")
    assert worker.stdout is not None
    assert any(line == "ready\n" for line in worker.stdout)

    ran = subprocess.run(
        [sys.executable, "tasks.py"], capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("\ncat.jpg at 320 pixels / hello Ada\n")


def test_every_link_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())]

    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []
