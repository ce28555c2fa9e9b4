"""`app.on`: who may subscribe to what."""

import pytest

from everbeat import Everbeat


@pytest.fixture
def app() -> Everbeat:
    return Everbeat("sqlite:///nowhere.db")


def test_a_function_is_registered_and_given_back(app: Everbeat) -> None:
    def told(event: object) -> None: ...

    assert app.on("worker.dead", told) is told
    assert app.worker_facts()["events"] == ["worker.dead"]


def test_it_is_a_decorator_as_well_for_sync_and_async_functions(app: Everbeat) -> None:
    @app.on("*")
    async def every(event: object) -> None: ...

    @app.on("task.failed")
    @app.on("task.recovered")
    def some(event: object) -> None: ...

    assert app.worker_facts()["events"] == ["*", "task.failed", "task.recovered"]


def test_a_name_that_no_event_has_is_refused_with_the_nearest_one(app: Everbeat) -> None:
    with pytest.raises(ValueError, match=r"no event 'task.recoverd' \(did you mean 'task.recovered'\?\)"):
        app.on("task.recoverd", print)


@pytest.mark.parametrize("function", [7, lambda: None, lambda one, two: None])
def test_what_can_not_be_called_with_an_event_is_refused(app: Everbeat, function: object) -> None:
    with pytest.raises(TypeError, match=r"app.on\(\)"):
        app.on("worker.dead", function)  # type: ignore[type-var]
