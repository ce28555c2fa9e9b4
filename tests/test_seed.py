"""Every requirement of the recovery specification names the tests that prove it, and docs/seed-004.md is current."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_requirement_has_a_test_or_a_reason_and_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/seed_004.py", "--check"], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")
