"""Tests of users: `app.testing()`, eager mode, the fixture."""

import asyncio
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import everbeat
from everbeat import (
    AppConfig,
    CurrentTask,
    Everbeat,
    ResultTimeout,
    RetryPolicy,
    SQLiteConfig,
    TaskFailed,
    TaskStatus,
    Workflow,
    WorkflowFailed,
    current_task,
)

SOURCE = Path(everbeat.__file__).parents[1]
COMPLETED, PENDING, FAILED = TaskStatus.COMPLETED, TaskStatus.PENDING, TaskStatus.FAILED


class Shop:
    """An application with tasks of every kind."""

    def __init__(self, config: AppConfig) -> None:
        self.app = Everbeat(config)
        self.said: list[str] = []
        self.failures = 2
        app = self.app

        @app.task(name="add")
        def add(a: int, b: int) -> int:
            return a + b

        @app.task(name="later")
        async def later(a: int) -> int:
            await asyncio.sleep(0)
            return a

        @app.task(name="flaky", retry=RetryPolicy(max_attempts=3, base_seconds=10, jitter=False))
        def flaky() -> int:
            if current_task().attempt <= self.failures:
                raise ValueError(f"attempt {current_task().attempt}")
            return current_task().attempt

        @app.task(name="when")
        def when(at: datetime) -> datetime:
            return at + timedelta(hours=1)

        @app.task(name="nested")
        def nested() -> int:
            return add.enqueue(1, 2).result(timeout=0) + later.enqueue(3).result(timeout=0)

        @app.task(name="anested")
        async def anested() -> int:
            one = await (await later.aenqueue(3)).aresult(timeout=0)
            return one + later.enqueue(4).result(timeout=0)

        @app.task(name="half")
        def half() -> None:
            current_task().progress(1, 2, "half")

        @app.task(name="lies")
        def lies() -> int:
            return "x"  # type: ignore[return-value]

        @app.task(name="exits")
        def exits() -> None:
            sys.exit("enough")

        self.add, self.later, self.flaky, self.when = add, later, flaky, when
        self.nested, self.anested, self.half, self.lies, self.exits = nested, anested, half, lies, exits


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(AppConfig(broker=SQLiteConfig(tmp_path / "never.db")))


@pytest.fixture
def eager(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(AppConfig(broker=SQLiteConfig(tmp_path / "never.db"), eager=True))
    yield shop
    shop.app.close()
    assert not (tmp_path / "never.db").exists()


# -- app.testing() ----------------------------------------------------------------------------------------------------


def test_what_was_sent_runs_when_the_test_says_so(shop: Shop, tmp_path: Path) -> None:
    with shop.app.testing() as t:
        handle = shop.add.enqueue(1, 2)
        assert handle.status() is PENDING

        assert t.run_pending() == 1

        assert handle.result(timeout=0) == 3
        assert [(task.name, task.status) for task in t.tasks()] == [("add", COMPLETED)]
    assert not list(tmp_path.iterdir())


def test_waiting_for_a_result_runs_what_is_ready(shop: Shop) -> None:
    with shop.app.testing():
        assert shop.add.enqueue(1, 2).result() == 3
        assert asyncio.run(shop.later.enqueue(5).aresult()) == 5


def test_a_wait_that_nobody_would_end_ends_at_once(shop: Shop) -> None:
    with shop.app.testing(), pytest.raises(ResultTimeout):
        shop.add.options(delay=60).enqueue(1, 2).result()


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_tasks_that_wait_for_each_other_are_not_waited_for_without_end(
    app: Everbeat, eager: bool, is_async: bool
) -> None:
    @app.task
    def asks(task_id: str) -> None:
        app.handle(task_id).result()

    @app.task
    def sends() -> None:
        asks.enqueue(current_task().id).result()

    @app.task
    async def asends() -> None:
        await (await asks.aenqueue(current_task().id)).aresult()

    with app.testing(eager=eager), pytest.raises(TaskFailed, match="ResultTimeout"):
        (asends if is_async else sends).enqueue().result()


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_task_that_waits_for_its_own_workflow_is_not_waited_for_without_end(app: Everbeat, is_nested: bool) -> None:
    @app.task
    def asks(workflow_id: str) -> None:
        app.workflow_handle(workflow_id).result()

    flow, inner = Workflow("own"), Workflow("inner")
    if is_nested:
        inner.add(asks, "mine")
        flow.add(inner)
    else:
        flow.add(asks, "mine")

    with app.testing(), pytest.raises(WorkflowFailed, match="ResultTimeout"):
        flow.start(app, id="mine").result()


def test_time_stands_still_until_it_is_moved(shop: Shop) -> None:
    with shop.app.testing() as t:
        handle = shop.add.options(delay=60).enqueue(1, 2)
        before = t.now
        assert abs(before - datetime.now(UTC)) < timedelta(minutes=1)

        t.advance(59.999)
        assert t.run_pending() == 0
        t.advance(timedelta(milliseconds=1))
        assert t.run_pending() == 1

        assert handle.result(timeout=0) == 3
        assert t.now - before == timedelta(seconds=60)


@pytest.mark.parametrize("wrong", [-1, "5", float("nan"), None])
def test_time_moves_forward_only(shop: Shop, wrong: Any) -> None:
    with shop.app.testing() as t, pytest.raises(ValueError, match="seconds"):
        t.advance(wrong)


def test_retries_are_decided_as_in_a_worker_and_run_at_once(shop: Shop) -> None:
    with shop.app.testing() as t:
        handle = shop.flaky.enqueue()

        assert t.run_pending() == 3

        info = handle.info()
        assert (handle.result(), info.attempt, len(info.attempts)) == (3, 3, 2)


def test_a_test_may_wait_for_the_backoff(shop: Shop) -> None:
    with shop.app.testing() as t:
        handle = shop.flaky.enqueue()

        assert t.run_pending(retries=False) == 1
        assert handle.info().run_at - t.now == timedelta(seconds=10)
        t.advance(10)
        assert t.run_pending(retries=False) == 1
        assert handle.info().run_at - t.now == timedelta(seconds=20)
        t.advance(20)
        assert t.run_pending(retries=False) == 1

        assert handle.result(timeout=0) == 3


def test_a_failure_is_the_same_as_from_a_worker(shop: Shop) -> None:
    shop.failures = 5
    with shop.app.testing() as t:
        handle = shop.flaky.enqueue()
        t.run_pending()

        with pytest.raises(TaskFailed) as caught:
            handle.result()
    assert (caught.value.error_code, caught.value.attempt) == ("UNHANDLED_EXCEPTION", 3)
    assert caught.value.exception_type == "builtins.ValueError"
    assert caught.value.traceback is not None
    assert "inprocess.py" not in caught.value.traceback
    assert "in flaky" in caught.value.traceback


def test_results_that_can_not_be_stored_fail_the_task(shop: Shop) -> None:
    with shop.app.testing(), pytest.raises(TaskFailed) as caught:
        shop.lies.enqueue().result()
    assert caught.value.error_code == "RESULT_INVALID"


def test_a_task_that_exits_fails_and_the_test_goes_on(shop: Shop) -> None:
    with shop.app.testing(), pytest.raises(TaskFailed, match="enough"):
        shop.exits.enqueue().result()


def test_a_task_that_stops_the_test_stops_it(shop: Shop) -> None:
    @shop.app.task(name="gives_up")
    def gives_up() -> None:
        pytest.fail("the test is over")

    with shop.app.testing() as t:
        gives_up.enqueue()
        with pytest.raises(pytest.fail.Exception, match="the test is over"):
            t.run_pending()


def test_tasks_that_tasks_send_run_too(shop: Shop) -> None:
    @shop.app.task(name="chain")
    def chain(n: int) -> None:
        if n:
            chain.enqueue(n - 1)

    with shop.app.testing() as t:
        chain.enqueue(5)

        assert t.run_pending(limit=2) == 2
        assert t.run_pending() == 4
        assert [task.status for task in t.tasks(name="chain")] == [COMPLETED] * 6


def test_async_tasks_share_a_loop_and_run_inside_a_running_one(shop: Shop) -> None:
    loops: list[Any] = []

    @shop.app.task(name="where")
    async def where() -> None:
        loops.append(asyncio.get_running_loop())

    async def inside() -> None:
        assert where.enqueue().status() is PENDING
        assert t.run_pending() == 1
        assert await (await shop.anested.aenqueue()).aresult() == 7

    with shop.app.testing() as t:
        where.enqueue_many([(), ()])
        t.run_pending()
        asyncio.run(inside())

    assert len(loops) == 3
    assert loops[0] is loops[1]


def test_testing_inside_a_running_loop_ends_as_it_does_outside(shop: Shop) -> None:
    said: list[str] = []

    @shop.app.on_child_stop
    async def stop() -> None:
        said.append("stop")

    async def atest() -> int:
        with shop.app.testing():
            return await (await shop.later.aenqueue(5)).aresult()

    assert asyncio.run(atest()) == 5
    assert said == ["stop"]


def test_hooks_run_in_testing_too(shop: Shop) -> None:
    said: list[str] = []

    @shop.app.around_task
    @contextmanager
    def around(task: CurrentTask) -> Iterator[None]:
        said.append(f"enter {task.name}")
        yield
        said.append("leave")

    shop.app.on_child_start(lambda: said.append("start"))

    @shop.app.on_child_stop
    async def stop() -> None:
        said.append("stop")

    with shop.app.testing() as t:
        assert said == []
        shop.add.enqueue(1, 2)
        shop.later.enqueue(1)
        t.run_pending()

    assert said == ["start", "enter add", "leave", "enter later", "leave", "stop"]


def test_what_a_stop_hook_sends_is_part_of_the_test(tmp_path: Path) -> None:
    shop = Shop(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db")))

    @shop.app.on_child_stop
    def stop() -> None:
        shop.add.enqueue(1, 2)

    with shop.app.testing() as t:
        shop.add.enqueue(3, 4)
        t.run_pending()

    assert not (tmp_path / "jobs.db").exists()


def test_progress_is_kept(shop: Shop) -> None:
    with shop.app.testing() as t:
        shop.half.enqueue()
        t.run_pending()

        assert t.tasks()[0].progress == {"done": 1, "total": 2, "note": "half"}


def test_each_testing_begins_empty_and_may_stand_inside_another(shop: Shop) -> None:
    with shop.app.testing() as outer:
        shop.add.enqueue(1, 2)
        with shop.app.testing() as inner:
            assert inner.tasks() == []
            shop.add.enqueue(3, 4)
        assert len(outer.tasks()) == 1


def test_the_application_goes_back_to_its_store(tmp_path: Path) -> None:
    shop = Shop(AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db")))
    before = shop.add.enqueue(1, 2)

    with shop.app.testing() as t:
        shop.add.enqueue(3, 4)
        assert len(t.tasks()) == 1

    assert before.status() is PENDING
    with pytest.raises(RuntimeError, match="only inside"):
        t.tasks()
    shop.app.close()


def test_nothing_is_left_of_a_throwaway_store(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with shop.app.testing():
        shop.add.enqueue(1, 2)
        assert len(list(tmp_path.iterdir())) == 1

    assert not list(tmp_path.iterdir())


# -- eager ------------------------------------------------------------------------------------------------------------


def test_an_eager_task_has_run_when_it_was_sent(eager: Shop) -> None:
    handle = eager.add.enqueue(1, 2)

    assert (handle.status(), handle.result(), handle.created) == (COMPLETED, 3, True)


def test_eager_arguments_and_results_travel(eager: Shop) -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)

    assert eager.when.enqueue(noon).result() == noon + timedelta(hours=1)
    with pytest.raises(everbeat.PayloadError, match="argument"):
        eager.when.enqueue("noon")  # type: ignore[arg-type]


def test_an_eager_failure_is_raised_by_the_handle_and_not_by_enqueue(eager: Shop) -> None:
    eager.failures = 5
    handle = eager.flaky.enqueue()

    assert handle.status() is FAILED
    with pytest.raises(TaskFailed, match="attempt 3"):
        handle.result()


def test_eager_does_not_wait_for_delays_or_backoff(eager: Shop) -> None:
    assert eager.add.options(delay=3600).enqueue(1, 2).result() == 3
    assert eager.flaky.enqueue().result() == 3


def test_eager_async_tasks_run_with_and_without_a_loop(eager: Shop) -> None:
    async def inside() -> list[int]:
        return [
            eager.later.enqueue(1).result(),
            await (await eager.later.aenqueue(2)).aresult(),
            eager.anested.enqueue().result(),
        ]

    assert eager.later.enqueue(5).result() == 5
    assert asyncio.run(inside()) == [1, 2, 7]


def test_eager_tasks_may_wait_for_each_other(eager: Shop) -> None:
    assert eager.nested.enqueue().result() == 6
    assert [handle.result() for handle in eager.add.enqueue_many([(1, 2), (3, 4)])] == [3, 7]


def test_eager_tasks_of_many_threads(eager: Shop) -> None:
    results: list[int] = []

    def send(n: int) -> None:
        results.append(eager.add.enqueue(n, n).result(timeout=30))

    threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(results) == [2 * n for n in range(8)]


def test_an_eager_application_that_is_closed_has_ended_like_a_worker(eager: Shop) -> None:
    said: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    @eager.app.task(name="where")
    async def where() -> None:
        loops.append(asyncio.get_running_loop())

    eager.app.on_child_stop(lambda: said.append("stop"))
    where.enqueue()

    eager.app.close()

    assert said == ["stop"]
    assert loops[0].is_closed()


def test_eager_can_be_set_from_outside(tmp_path: Path) -> None:
    code = """
from everbeat import Everbeat
app = Everbeat("sqlite:///never.db")

@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b

print(add.enqueue(1, 2).status(), app.config.eager)
"""
    environment = os.environ | {"EVERBEAT_EAGER": "1", "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)

    assert (done.stdout.strip(), list(tmp_path.iterdir())) == ("COMPLETED True", [])


def test_a_worker_refuses_an_eager_application(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from everbeat import *\napp = Everbeat(AppConfig(eager=True))\n")
    command = [sys.executable, "-m", "everbeat", "worker", "start", "shop:app", "--burst"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}

    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert done.returncode == 2
    assert "eager is for tests" in done.stderr


# -- the fixture ------------------------------------------------------------------------------------------------------

FIXTURE_TESTS = """
from everbeat import TaskStatus

def test_a_new_application(everbeat_app):
    @everbeat_app.task
    def add(a: int, b: int) -> int:
        return a + b

    assert add.enqueue(1, 2).status() is TaskStatus.COMPLETED
    assert add.enqueue(1, 2).result() == 3
    with everbeat_app.testing() as t:
        handle = add.enqueue(3, 4)
        assert handle.status() is TaskStatus.PENDING
        t.run_pending()
        assert handle.result() == 7

def test_another_one_each_time(everbeat_app):
    assert not everbeat_app.tasks
"""

NAMED_TESTS = """
from shop import app, add

def test_the_application_that_was_named(everbeat_app):
    assert everbeat_app is app
    assert add.enqueue(1, 2).result() == 3
"""

LIGHT = """
import sys

def test_nothing_is_loaded_that_is_not_used():
    assert "everbeat_pytest" in sys.modules
    assert "everbeat" not in sys.modules
"""

SHOP = """
from everbeat import Everbeat
app = Everbeat("sqlite:///never.db")

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


def pytest_says(directory: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "everbeat_pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=100)
    return done.stdout + done.stderr


def test_the_fixture_is_an_application_whose_tasks_run_when_they_are_sent(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FIXTURE_TESTS)

    assert "2 passed" in pytest_says(tmp_path)


def test_the_fixture_takes_the_application_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\neverbeat_app = shop:app\npythonpath = .\n")
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_it.py").write_text(NAMED_TESTS)

    assert "1 passed" in pytest_says(tmp_path)
    assert not (tmp_path / "never.db").exists()


def test_an_application_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\neverbeat_app = nowhere:app\n")
    (tmp_path / "test_it.py").write_text("def test_it(everbeat_app): ...\n")

    assert "everbeat_app = nowhere:app: there is no module nowhere" in pytest_says(tmp_path)


def test_the_plugin_loads_nothing_until_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LIGHT)

    assert "1 passed" in pytest_says(tmp_path)


def test_the_plugin_of_an_installed_package_loads_by_itself(tmp_path: Path) -> None:
    """With what an installer writes, and without any option, as after `pip install everbeat`."""
    declared = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = tmp_path / "site" / "everbeat-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: everbeat\nVersion: 1\n")
    entries = "".join(f"{name} = {module}\n" for name, module in declared.items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{entries}")
    (tmp_path / "test_it.py").write_text(FIXTURE_TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        env=environment | {"PYTHONPATH": f"{installed.parent}{os.pathsep}{SOURCE}"}, cwd=tmp_path, capture_output=True,
        text=True, timeout=100,
    )  # fmt: skip

    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_is_declared() -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())

    assert project["project"]["entry-points"]["pytest11"] == {"everbeat_pytest": "everbeat_pytest"}
    assert "src/everbeat_pytest.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_exit_out_of_a_task_is_a_failure_as_under_a_worker(shop: Shop, is_async: bool) -> None:
    def leaves() -> None:
        raise GeneratorExit

    async def aleaves() -> None:
        raise GeneratorExit

    task: Any = shop.app.task(name="leaves")(aleaves if is_async else leaves)
    with shop.app.testing() as t:
        task.enqueue()

        assert t.run_pending() == 1

        (info,) = t.tasks()
        assert (info.status, info.error_code) == (TaskStatus.FAILED, "UNHANDLED_EXCEPTION")
