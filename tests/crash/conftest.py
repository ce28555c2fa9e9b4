"""A yard for each test. At its end nothing may be left of it, and no worker may have had a traceback to show."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.crash.apps import ground
from tests.crash.yard import Yard

both_stores = pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
"""For a test that runs over a file and over PostgreSQL."""


class MakeYard(Protocol):
    def __call__(self, **recovery: Any) -> Yard: ...


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str | None:
    """Of the yard's store: None for a file in it, as in every test that is not for `both_stores`."""
    kind = getattr(request, "param", "sqlite")
    return None if kind == "sqlite" else request.getfixturevalue("a_database").with_tables()


@pytest.fixture
def make_yard(store_url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeYard]:
    """A yard whose workers have this RecoveryConfig."""
    yards: list[Yard] = []
    for name in [name for name in os.environ if name.startswith("EVERBEAT_")]:
        monkeypatch.delenv(name)

    def make(**recovery: Any) -> Yard:
        from tests.crash.yard import SOURCES

        (tmp_path / "gates").mkdir()
        environment = {"YARD": str(tmp_path), "YARD_RECOVERY": json.dumps(recovery), "PYTHONPATH": str(SOURCES)}
        if store_url is not None:
            environment |= {"YARD_URL": store_url, "EVERBEAT_STATE_DIR": str(tmp_path / "state")}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yards.append(Yard(tmp_path, ground.make_app(), environment, store_url))
        return yards[-1]

    yield make
    for yard in yards:
        print(yard.story())  # noqa: T201 - shown by pytest if the test failed
        complaints = [] if yard.may_complain else yard.complaints()
        yard.clear()
        yard.app.close()
        assert not complaints


@pytest.fixture
def yard(make_yard: MakeYard) -> Yard:
    return make_yard()
