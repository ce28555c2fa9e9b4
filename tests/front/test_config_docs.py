"""docs/configuration.md is made from the classes, is current, and its examples mean the same in every source."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import everbeat
from everbeat import AppConfig, Everbeat, QueueConfig, RecoveryConfig, SQLiteConfig
from everbeat.config.setting import SECTIONS, LeftOut

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/configuration.md").read_text()
SAID = AppConfig(
    broker=SQLiteConfig("/srv/jobs.db", durability="normal"),
    recovery=RecoveryConfig(action="fail", heartbeat_retention_hours=None),
    queues=[QueueConfig("mail", max_concurrency=5)],
)


@pytest.fixture(autouse=True)
def _bare_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("EVERBEAT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_page_of_settings_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/config_docs.py", "--check"], check=False)

    assert done.returncode == 0, "docs/configuration.md is not current: run python tools/config_docs.py"


def test_every_field_is_a_setting_with_a_rule() -> None:
    for cls in (RecoveryConfig, AppConfig):
        assert any(cls in classes for classes in SECTIONS.values())
        fields = cls.__dataclass_fields__.values()
        assert [field.name for field in fields if not isinstance(field.default, LeftOut)] == []


def test_the_example_in_code() -> None:
    names = vars(everbeat).copy()

    exec(example("python"), names)

    app = names["app"]
    assert isinstance(app, Everbeat)
    assert app.config == SAID


@pytest.mark.parametrize("language", ["toml", "yaml"])
def test_the_example_of_a_file(language: str, tmp_path: Path) -> None:
    (tmp_path / f"everbeat.{language}").write_text(example(language))

    assert AppConfig() == SAID


def test_the_example_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in example("sh").splitlines():
        monkeypatch.setenv(*line.split("=", 1))

    assert AppConfig(queues=SAID.queues) == SAID
