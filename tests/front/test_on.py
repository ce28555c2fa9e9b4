"""`app.on`: who may subscribe to what."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import everbeat
from everbeat import Everbeat

SHOP = """
import os
import time
from pathlib import Path
from everbeat import Everbeat

app = Everbeat("sqlite:///jobs.db")

@app.task
def fails() -> None:
    Path("tasks").write_text(str(os.getpid()))
    raise ValueError

@app.on("task.failed")
def told(event) -> None:
    Path("events").write_text(str(os.getpid()))

@app.on_child_stop
def stop() -> None:
    time.sleep(0.5)
    Path(f"stopped-{os.getpid()}").touch()

if __name__ == "__main__":
    fails.enqueue()
"""


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


def test_the_process_of_the_subscribers_does_what_is_wanted_at_its_end_before_the_worker_ends(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(everbeat.__file__).parents[1]), str(tmp_path)])}

    for words in (["shop.py"], ["-m", "everbeat", "worker", "start", "shop:app", "--burst", "--processes", "1"]):
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, check=True, timeout=60)

    processes = [(tmp_path / name).read_text() for name in ("tasks", "events")]
    assert {f"stopped-{pid}" for pid in processes} <= {one.name for one in tmp_path.iterdir()}
