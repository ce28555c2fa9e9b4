"""docs/guarantees.md: every test that it names is there, in a file that it links to."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
PROMISES = [f"P{number}" for number in range(1, 13)]


def test_every_promise_says_how_it_is_kept_how_it_is_proved_and_what_it_does_not_cover() -> None:
    sections = {section.split()[0]: section for section in PAGE.split("\n## ")}

    assert [name for name in sections if name in PROMISES] == PROMISES
    for name in PROMISES:
        assert all(part in sections[name] for part in ("*Kept by:*", "*Proved by:*", "*Not covered:*")), name


def test_every_test_that_is_named_exists() -> None:
    linked = "".join((ROOT / "docs" / link).read_text() for link in re.findall(r"\]\((\.\./tests/[^)]+)\)", PAGE))

    named = re.findall(r"`(test_\w+)`", PAGE)

    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in linked] == []
