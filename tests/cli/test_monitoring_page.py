"""docs/monitoring.md names every event and every metric, and none that is not there."""

import re
from pathlib import Path

from tests.cli.by_hand import Command

from everbeat.model.event import NAMES
from everbeat.store.interface import Store

PAGE = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()


def first_cells(section: str) -> set[str]:
    """What the tables of a section are about."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([a-z_.]+)", cell)}


def test_every_event_is_explained() -> None:
    assert first_cells("Events") == NAMES


def test_every_metric_is_explained(everbeat: Command, store: Store, url: str) -> None:
    out = everbeat("metrics", "--db", url).out

    assert first_cells("Metrics") == set(re.findall(r"^# HELP (\S+)", out, re.MULTILINE))
