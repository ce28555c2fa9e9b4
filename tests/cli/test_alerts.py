"""docs/alerts.yml and docs/runbook.md belong together, and name only what is there."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.by_hand import Command

from everbeat.store.interface import Store

DOCS = Path(__file__).parents[2] / "docs"
RULES: list[dict[str, Any]] = yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"][0]["rules"]
RUNBOOK = (DOCS / "runbook.md").read_text()
SECTIONS = re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)


def test_each_alert_has_its_section_and_each_section_its_alert() -> None:
    assert [rule["alert"] for rule in RULES] == SECTIONS


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_says_what_it_means_what_to_do_first_and_what_is_safe(section: str) -> None:
    text = RUNBOOK.split(f"\n## {section}\n")[1].split("\n## ")[0]

    assert re.search(r"\*\*Means:\*\*.*\*\*First:\*\* `everbeat .*\*\*Safe:\*\*", text, re.DOTALL)


def test_alerts_ask_for_metrics_that_exist(everbeat: Command, store: Store, url: str) -> None:
    out = everbeat("metrics", "--db", url).out
    known = set(re.findall(r"^# HELP (\S+)", out, re.MULTILINE))

    asked = {name for rule in RULES for name in re.findall(r"everbeat_\w+", rule["expr"])}

    assert asked <= known
    assert len(asked) == 13


def test_every_command_of_the_runbook_can_be_given(everbeat: Command, store: Store, url: str) -> None:
    asked = set(re.findall(r"`everbeat ([a-z -]+?)(?: [A-Z]+| --[^`]*)?`", RUNBOOK))

    for words in asked:
        assert everbeat(*words.split(), "--help").code == 0, words
    assert len(asked) >= 10
