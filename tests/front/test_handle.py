"""A handle looks at a task, cancels it, and waits for its result through retries and outages."""

import asyncio
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from everbeat import (
    Everbeat,
    ResultTimeout,
    StoreUnavailable,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskNotFound,
    TaskStatus,
)
from everbeat.handle import Patience, TaskHandle
from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.model.task import Finished


@dataclass
class Sum:
    value: int


@pytest.fixture
def add(app: Everbeat) -> Any:
    @app.task
    def add(a: int, b: int) -> Sum:
        return Sum(a + b)

    return add


@pytest.fixture
def broken(app: Everbeat) -> Any:
    @app.task
    def broken() -> None:
        raise ValueError("boom")

    return broken


def test_a_result_has_the_annotated_type(add: Any, worker: Any) -> None:
    handle = add.enqueue(1, 2)
    worker.run_one()

    assert handle.result() == Sum(3)
    assert handle.status() is TaskStatus.COMPLETED


def test_a_handle_from_an_id_gives_the_same_result(app: Everbeat, add: Any, worker: Any) -> None:
    task_id = add.enqueue(1, 2).id
    worker.run_one()

    assert add.handle(task_id).result(timeout=0) == Sum(3)
    assert app.handle(task_id).result(timeout=0) == Sum(3)
    assert not app.handle(task_id).created


def test_a_result_of_a_task_that_is_not_registered_here_is_plain_json(app: Everbeat, add: Any, worker: Any) -> None:
    handle = add.enqueue(1, 2)
    worker.run_one()
    elsewhere = Everbeat(app.config)

    assert elsewhere.handle(handle.id).result(timeout=0) == {"value": 3}
    elsewhere.close()


def test_a_result_that_is_not_there_yet_is_a_timeout(add: Any) -> None:
    handle = add.enqueue(1, 2)

    for timeout in (0, 0.01, timedelta(milliseconds=10)):
        with pytest.raises(ResultTimeout, match="it has not ended yet") as caught:
            handle.result(timeout=timeout)
    assert (caught.value.task_id, caught.value.waited_for) == (handle.id, 0.01)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", True])
def test_a_timeout_that_can_not_be_is_a_value_error(add: Any, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        add.enqueue(1, 2).result(timeout=timeout)


def test_waiting_ends_when_the_task_does(add: Any, worker: Any) -> None:
    handle = add.enqueue(1, 2)
    timer = threading.Timer(0.05, worker.run_one)
    timer.start()

    assert handle.result() == Sum(3)
    timer.join()


def test_awaiting_ends_when_the_task_does(add: Any, worker: Any) -> None:
    async def wait() -> Any:
        handle = await add.aenqueue(1, 2)
        running = asyncio.get_running_loop().run_in_executor(None, worker.run_one)
        result = await handle.aresult(timeout=30)
        await running
        return result

    assert asyncio.run(wait()) == Sum(3)


def test_many_can_be_awaited_at_once_without_holding_threads(add: Any, worker: Any) -> None:
    async def wait() -> tuple[list[Any], int]:
        handles = await add.aenqueue_many([(n, 0) for n in range(100)])
        waits = [asyncio.ensure_future(handle.aresult(timeout=60)) for handle in handles]
        await asyncio.sleep(0.2)
        busy = threading.active_count()
        await asyncio.to_thread(lambda: [worker.run_one() for _ in handles])
        return await asyncio.gather(*waits), busy

    results, threads = asyncio.run(wait())

    assert results == [Sum(n) for n in range(100)]
    assert threads < 50


def test_awaiting_what_is_not_there_yet_is_a_timeout(add: Any) -> None:
    async def wait() -> None:
        handle = await add.aenqueue(1, 2)
        with pytest.raises(ResultTimeout):
            await handle.aresult(timeout=0)
        with pytest.raises(ResultTimeout):
            await handle.aresult(timeout=0.01)

    asyncio.run(wait())


def test_a_failed_task_raises_with_every_fact(broken: Any, worker: Any) -> None:
    handle = broken.enqueue()
    worker.run_one()

    with pytest.raises(TaskFailed) as caught:
        handle.result(timeout=0)

    error = caught.value
    assert (error.task_id, error.error_code, error.message, error.attempt) == (
        handle.id,
        "UNHANDLED_EXCEPTION",
        "boom",
        1,
    )
    assert error.exception_type == "builtins.ValueError"
    assert error.traceback is not None
    assert 'raise ValueError("boom")' in error.traceback


def test_waiting_goes_on_through_a_retry(add: Any, worker: Any) -> None:
    handle = add.enqueue(1, 2)
    claim = worker.claim()
    worker.settle(claim, Verdict(change=Change.RETRY, reason="again"))

    with pytest.raises(ResultTimeout):
        handle.result(timeout=0)
    worker.run_one()

    assert handle.result(timeout=0) == Sum(3)
    assert handle.info().attempt == 2


def test_a_cancelled_task_raises(add: Any) -> None:
    handle = add.enqueue(1, 2)

    assert handle.cancel() is True
    assert handle.status() is TaskStatus.CANCELLED
    with pytest.raises(TaskCancelled):
        handle.result()
    assert handle.cancel() is False


def test_an_expired_task_raises(add: Any) -> None:
    finished = Finished(status=TaskStatus.EXPIRED, attempt=0, result=None, error=None)

    with pytest.raises(TaskExpired):
        add.enqueue(1, 2)._outcome(finished)


def test_an_id_that_nobody_knows_is_not_found(app: Everbeat) -> None:
    handle = app.handle("nobody")

    for use in (handle.status, handle.info, handle.cancel, handle.result, lambda: asyncio.run(handle.aresult())):
        with pytest.raises(TaskNotFound) as caught:
            use()
        assert caught.value.task_id == "nobody"
        assert f"no task nobody in {app.store.location}:" in str(caught.value)


def test_the_async_twins_say_the_same(add: Any) -> None:
    async def look() -> tuple[Any, Any, Any]:
        handle = await add.aenqueue(1, 2)
        return await handle.astatus(), (await handle.ainfo()).queue, await handle.acancel()

    assert asyncio.run(look()) == (TaskStatus.PENDING, "default", True)


def test_handles_of_one_task_are_equal(app: Everbeat, add: Any) -> None:
    handle = add.enqueue(1, 2)

    assert handle == app.handle(handle.id)
    assert len({handle, app.handle(handle.id)}) == 1
    assert handle != app.handle("other")
    assert repr(handle) == f"<handle of task {handle.id}>"


# -- when the store is away -------------------------------------------------------------------------------------------


def test_waiting_goes_on_until_the_store_is_there(tmp_path: Path) -> None:
    app = Everbeat(f"sqlite:///{tmp_path}/later/jobs.db")
    elsewhere = Everbeat(f"sqlite:///{tmp_path}/jobs.db")
    task = elsewhere.task(name="nothing")(lambda: None)
    handle: TaskHandle[Any] = app.handle(task.enqueue().id)
    task.handle(handle.id).cancel()
    elsewhere.close()
    appears = threading.Timer(0.2, lambda: (tmp_path / "later").symlink_to(tmp_path))
    appears.start()

    with pytest.raises(TaskCancelled):
        handle.result(timeout=30)
    with pytest.raises(TaskCancelled):
        asyncio.run(handle.aresult(timeout=30))
    app.close()


def test_a_timeout_while_the_store_is_away_says_so(tmp_path: Path) -> None:
    handle = Everbeat(f"sqlite:///{tmp_path}/no/such/jobs.db").handle("t1")

    for wait in (lambda: handle.result(timeout=0.1), lambda: asyncio.run(handle.aresult(timeout=0))):
        with pytest.raises(ResultTimeout, match="the store can not be reached") as caught:
            wait()
        assert caught.value.store_away
        assert isinstance(caught.value.__cause__, StoreUnavailable)


def test_pauses_grow_and_never_go_beyond_the_time_left() -> None:
    outage = StoreUnavailable("away")
    unlimited, limited = Patience("t1", None), Patience("t1", 0.01)

    pauses = [unlimited.pause(outage) for _ in range(20)]

    assert pauses[0] <= 0.05
    assert 1.0 <= pauses[-1] <= 2.0
    assert limited.pause(outage) <= 0.01
    assert unlimited.left() is None
    time.sleep(0.02)
    with pytest.raises(ResultTimeout):
        limited.pause(outage)
