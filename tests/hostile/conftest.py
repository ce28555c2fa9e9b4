"""Furnished stores, one for each test."""

import os
import shutil
from pathlib import Path

import pytest
from tests.conftest import PLACE
from tests.hostile import furnished
from tests.hostile.rows import Hand, PostgresHand, SQLiteHand
from tests.postgres import EmptyDatabase


@pytest.fixture(scope="session")
def furnished_file(tmp_path_factory: pytest.TempPathFactory) -> SQLiteHand:
    hand = SQLiteHand(tmp_path_factory.mktemp("furnished") / "jobs.db")
    furnished.furnish(hand)
    return hand


@pytest.fixture(scope="session")
def furnished_database(a_database: EmptyDatabase) -> PostgresHand:
    hand = PostgresHand(a_database.another("furnished"))
    furnished.furnish(hand)
    return hand


@pytest.fixture(params=["sqlite", "postgres"])
def hand(request: pytest.FixtureRequest, tmp_path: Path) -> Hand:
    """Of somebody with a furnished store."""
    if request.param == "sqlite":
        return SQLiteHand(shutil.copy(request.getfixturevalue("furnished_file").path, tmp_path / "jobs.db"))
    furnished = request.getfixturevalue("furnished_database")
    return PostgresHand(request.getfixturevalue("a_database").another("hostile", like=furnished.url))


@pytest.fixture(autouse=True)
def _bare_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("EVERBEAT_") and name != PLACE]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
