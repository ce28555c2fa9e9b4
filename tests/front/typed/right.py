"""What a type checker must accept, and know. Read by mypy --strict and pyright, and imported."""

from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_type

from everbeat import (
    AppConfig,
    Broker,
    CurrentTask,
    Everbeat,
    PostgresConfig,
    QueueConfig,
    RecoveryConfig,
    RetryPolicy,
    SQLiteConfig,
    StaleWorker,
    Task,
    TaskHandle,
    TaskInfo,
    TaskStatus,
    WorkerHeartbeatStatus,
    current_task,
)
from everbeat.task import AsyncTask, Call, SyncTask

app = Everbeat("sqlite:////nowhere/jobs.db", imports=["shop.tasks"])


@app.task
def add(a: int, b: int = 2) -> int:
    return a + b


@app.task(
    name="mail.send", queue="mail", retry=RetryPolicy(max_attempts=5), timeout=timedelta(seconds=5), on_crash="retry"
)
async def send_mail(to: str) -> bool:
    return bool(to)


@app.task(priority=5)
def nothing() -> None: ...


@app.task
def every_kind(a: int, /, b: str, *rest: float, c: bytes, d: list[int] | None = None, **more: bool) -> dict[str, int]:
    return {}


@app.around_task
@contextmanager
def traced(task: CurrentTask) -> Iterator[None]:
    assert_type(task.id, str)
    yield


@app.around_task
def as_generator(task: CurrentTask) -> Iterator[None]:
    yield


@app.around_task
@asynccontextmanager
async def awaited_around(task: CurrentTask) -> AsyncIterator[None]:
    yield


@app.on_child_start
def prepare() -> None: ...


@app.on_child_stop
async def clear() -> None: ...


def takes_any_task(task: Task[..., Any]) -> str:
    return task.name


if TYPE_CHECKING:
    # A plain call is a plain call.
    assert_type(add(1, 2), int)
    coroutine: Coroutine[Any, Any, bool] = send_mail("bob")

    # Sending is typed like the function; the result of an async task is what it returns when awaited.
    assert_type(add.enqueue(1, b=2), TaskHandle[int])
    assert_type(send_mail.enqueue(to="bob"), TaskHandle[bool])
    assert_type(nothing.enqueue(), TaskHandle[None])

    # So are many, and options.
    assert_type(add.enqueue_many([(1, 2), add.args(3, b=4)], batch_size=None), list[TaskHandle[int]])
    assert_type(add.options(delay=60, priority=1, queue="q", id="x").enqueue(1), TaskHandle[int])
    assert_type(add.options(delay=60).enqueue_many([(1, 2)]), list[TaskHandle[int]])
    call: Call[[int, int]] = add.options(delay=60).args(1, b=2)
    keyed = add.options(unique_key="x", exclusive_key="db:prod", good_until=datetime.now(UTC), connection=None)
    assert_type(keyed.enqueue(1), TaskHandle[int])
    assert_type(send_mail.options(delay=timedelta(hours=1)).enqueue("bob"), TaskHandle[bool])

    # Every kind of parameter is kept.
    assert_type(every_kind.enqueue(1, "b", 0.5, 1.5, c=b"", d=[1], flag=True), TaskHandle[dict[str, int]])
    assert_type(every_kind.options(delay=1).enqueue(1, b="b", c=b""), TaskHandle[dict[str, int]])

    # The decorator keeps the kind of the function.
    add_again: SyncTask[[int, int], int] = add
    send_again: AsyncTask[[str], bool] = send_mail

    # Handles carry the type of the result.
    assert_type(add.handle("x"), TaskHandle[int])
    assert_type(app.handle("x"), TaskHandle[Any])
    assert_type(add.enqueue(1).result(timeout=5), int)
    assert_type(add.enqueue(1).status(), TaskStatus)
    assert_type(add.enqueue(1).info(), TaskInfo)
    assert_type(add.enqueue(1).cancel(), bool)

    # Any task is a Task.
    takes_any_task(add)
    takes_any_task(send_mail)
    of_two: Task[[int, int], int] = app.task(lambda a, b: a + b)


async def awaited() -> None:
    assert_type(await add.aenqueue(1), TaskHandle[int])
    assert_type(await add.aenqueue_many([(1,)]), list[TaskHandle[int]])
    assert_type(await send_mail.options(delay=1).aenqueue("bob"), TaskHandle[bool])
    assert_type(await send_mail("bob"), bool)
    handle = await send_mail.aenqueue("bob")
    assert_type(await handle.aresult(timeout=timedelta(seconds=5)), bool)
    assert_type(await handle.astatus(), TaskStatus)
    assert_type(await handle.ainfo(), TaskInfo)
    assert_type(await handle.acancel(), bool)


def inside() -> None:
    task = current_task()
    assert_type(task, CurrentTask)
    assert_type((task.attempt, task.fence, task.is_cancelled()), tuple[int, int, bool])
    task.progress(1, 2.5, "half")
    task.progress(1)
    task.heartbeat()


async def by_hand() -> None:
    broker = app.get_broker()
    assert_type(broker, Broker)
    assert_type(await broker.get_stale_tasks(stale_threshold_minutes=5), list[dict[str, Any]])
    assert_type(await broker.mark_stale_tasks_as_failed(stale_threshold_ms=300_000), int)
    assert_type(await broker.requeue_stale_claimed(stale_threshold_ms=120_000), int)
    assert_type(await broker.recover_stuck_workflows(), int)
    assert_type(await broker.is_worker_alive("w"), bool)
    assert_type(await broker.detect_stale_workers(), list[StaleWorker])
    assert_type(await broker.mark_worker_dead("w"), bool)
    assert_type(await broker.get_worker_status(), list[WorkerHeartbeatStatus])
    await broker.send_heartbeat("w", task_id="t")
    assert_type(broker.sync.requeue_stale_claimed(), int)


def configurations() -> list[AppConfig]:
    return [
        AppConfig(),
        AppConfig(broker=SQLiteConfig("jobs.db", durability="normal", file_mode=0o660)),
        AppConfig(
            broker=PostgresConfig(database_url="postgresql://db/jobs", schema="queue"),
            recovery=RecoveryConfig.high_availability(),
            queues=[QueueConfig("mail", max_concurrency=5, paused=False)],
        ),
    ]
