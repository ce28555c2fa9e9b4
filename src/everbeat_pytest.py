"""The pytest plugin: the fixture `everbeat_app`.

Loaded in every test run of a project that has Everbeat installed, so it imports nothing until the fixture is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everbeat import Everbeat

OPTION = "everbeat_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(OPTION, "MODULE:APP that the fixture everbeat_app puts under test; left out, an empty application")


@pytest.fixture
def everbeat_app(request: pytest.FixtureRequest) -> "Iterator[Everbeat]":
    """An application whose tasks run when they are sent, in this process, on a store that is thrown away.

    The one that the ini option `everbeat_app` names, or a new one without tasks. To run tasks later, as a worker would:
    `with everbeat_app.testing() as t`.
    """
    target = str(request.config.getini(OPTION) or "")
    app = _load(target) if target else _new()
    with app.testing(eager=True):
        yield app


def _load(target: str) -> Any:
    from everbeat.run.loading import load_app
    from everbeat.run.unusable import AppUnusable

    try:
        return load_app(target, ())
    except AppUnusable as error:
        raise pytest.UsageError(f"{OPTION} = {target}: {error}") from error


def _new() -> "Everbeat":
    from everbeat import Everbeat

    return Everbeat("sqlite:///never-opened.db")
