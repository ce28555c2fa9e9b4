"""What an application runs around its tasks, in real processes of a real worker."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everbeat
from everbeat import Everbeat, SQLiteConfig, TaskFailed, TaskHandle
from everbeat.model import event

APPS = Path(__file__).parent / "apps"
SOURCE = Path(everbeat.__file__).parents[1]
PATIENCE = 60.0


class Stage:
    """An application of `apps/` in a directory of its own, seen from outside, and its worker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.app = Everbeat(SQLiteConfig(directory / "jobs.db"))
        self.workers: list[subprocess.Popen[bytes]] = []
        for name in (
            "add",
            "later",
            "fails",
            "lies",
            "reports",
            "areports",
            "counts",
            "acounts",
            "bad_progress",
            "threads",
        ):
            self.app.task(name=name)(_anything)

    def send(self, name: str, **arguments: Any) -> TaskHandle[Any]:
        """By name, with plain JSON: the function itself is known to the worker only."""
        from everbeat.model.task import NewTask, TaskKind
        from everbeat.payload import ENCODER

        task_id = self.app.make_ids(1)[0]
        self.app.store.enqueue([NewTask(task_id, ENCODER.encode(arguments), TaskKind(name, max_attempts=2))])
        return self.app.handle(task_id)

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "everbeat", "worker", "start", "surrounded:app", "--processes", "1", *words]
        environment = os.environ | {
            "LEDGER": str(self.directory / "ledger"),
            "PYTHONPATH": os.pathsep.join([str(SOURCE), str(APPS)]),
        }
        with (self.directory / "log").open("ab") as log:
            worker = subprocess.Popen(command, env=environment, cwd=self.directory, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    def run(self) -> None:
        """A worker that runs what there is, and ends."""
        assert self.start("--burst").wait(PATIENCE) == 0, self.log

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def ledger(self, pid: str | None = None) -> list[str]:
        path = self.directory / "ledger"
        lines = [line.partition(" ") for line in path.read_text().splitlines()] if path.exists() else []
        return [word for process, _, word in lines if pid is None or process == pid]

    def story_of(self, word: str) -> list[str]:
        """Everything that was noted in the process that noted this."""
        lines = [line.partition(" ") for line in (self.directory / "ledger").read_text().splitlines()]
        pid = next(process for process, _, said in lines if said.startswith(word))
        return [said for process, _, said in lines if process == pid]


def _anything(**arguments: Any) -> Any: ...


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, f"waited for {PATIENCE:.0f}s: {what}"
        time.sleep(0.02)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    for worker in stage.workers:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
    stage.app.close()


def test_a_task_runs_inside_every_context_manager_in_order_and_its_process_is_prepared_and_cleared(
    stage: Stage,
) -> None:
    handle = stage.send("add", a=1, b=2)

    stage.run()

    assert handle.result(timeout=0) == 3
    assert stage.story_of("add") == [
        "start first", "start second",
        "enter outermost add 1", "enter innermost in outermost", "add in outermost", "leave innermost",
        "leave outermost",
        "stop second", "stop first",
    ]  # fmt: skip
    assert "told on stderr, and nobody else suffers" in stage.log


def test_an_async_task_runs_inside_sync_and_async_context_managers(stage: Stage) -> None:
    handle = stage.send("later", n=5)

    stage.run()

    assert handle.result(timeout=0) == 5
    assert stage.story_of("later") == [
        "start first", "start second",
        "enter outermost later 1", "enter async", "enter innermost in outermost", "later in outermost",
        "leave innermost", "leave async", "leave outermost",
        "stop second", "stop first",
    ]  # fmt: skip


def test_a_context_manager_sees_what_a_task_raises_and_can_not_swallow_it(stage: Stage) -> None:
    handle = stage.send("fails")

    stage.run()

    with pytest.raises(TaskFailed, match="no good") as caught:
        handle.result(timeout=0)
    assert (caught.value.error_code, caught.value.exception_type) == ("UNHANDLED_EXCEPTION", "builtins.ValueError")
    assert stage.ledger().count("outermost saw no good") == 1
    assert caught.value.traceback is not None
    assert "everbeat" not in caught.value.traceback.replace("surrounded.py", "")


def test_a_result_that_can_not_be_stored_is_seen_by_what_is_around(stage: Stage) -> None:
    handle = stage.send("lies")

    stage.run()

    with pytest.raises(TaskFailed) as caught:
        handle.result(timeout=0)
    assert caught.value.error_code == "RESULT_INVALID"
    assert "leave outermost" in stage.ledger()


def test_progress_is_seen_while_the_task_runs_and_its_last_word_is_kept(stage: Stage) -> None:
    handle = stage.send("reports", many=200_000)
    worker = stage.start("--burst")

    counted = {"done": 199_999, "total": 200_000, "note": "counting"}
    until(lambda: handle.info().progress == counted, "the last of 200000 reports is stored")
    (stage.directory / "seen").touch()

    assert worker.wait(PATIENCE) == 0
    info = handle.info()
    assert info.progress == {"done": 200_000, "total": 200_000, "note": "done"}
    assert handle.result(timeout=0) == info.worker_id


def test_a_heartbeat_of_a_task_is_stored(stage: Stage) -> None:
    (stage.directory / "seen").touch()
    handle = stage.send("reports", many=0)

    stage.run()

    info = handle.info()
    with stage.app.store.database.read() as tx:  # type: ignore[attr-defined]
        beats = tx.all("SELECT sender_id, role, fence FROM everbeat_heartbeats WHERE task_id = ?", (handle.id,))
    assert beats == [(info.worker_id, "runner", info.fence)]


def test_progress_of_an_async_task_is_kept(stage: Stage) -> None:
    handle = stage.send("areports")

    stage.run()

    assert handle.info().progress == {"done": 0.5, "total": None, "note": None}


@pytest.mark.parametrize("name", ["counts", "acounts"])
def test_progress_in_numbers_that_json_does_not_know_harms_nobody(stage: Stage, name: str) -> None:
    handle = stage.send(name)

    stage.run()

    assert handle.result(timeout=0) == "counted"
    assert handle.info().progress == {"done": 0.5, "total": 1.5, "note": None}


def test_progress_that_is_none_is_refused_where_it_is_said(stage: Stage) -> None:
    handle = stage.send("bad_progress")

    stage.run()

    assert handle.result(timeout=0) == ["TypeError", "ValueError", "ValueError", "TypeError"]
    assert handle.info().progress is None


def test_a_thread_with_the_context_of_a_task_may_ask_for_it(stage: Stage) -> None:
    handle = stage.send("threads")

    stage.run()

    assert handle.result(timeout=0) is False


def test_a_process_that_can_not_be_prepared_runs_nothing_until_it_can(stage: Stage) -> None:
    (stage.directory / "broken").touch()
    handle = stage.send("add", a=1, b=2)
    worker = stage.start()

    def failures() -> list[Any]:
        return [said for said in stage.app.store.events() if said.name == event.APP_FAILED]

    until(lambda: len(failures()) >= 2, "two processes could not be prepared")
    assert "the pool can not be opened" in failures()[0].facts["message"]
    assert handle.info().attempt == 0

    (stage.directory / "broken").unlink()
    assert handle.result(timeout=PATIENCE) == 3
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert stage.story_of("add")[-2:] == ["stop second", "stop first"]


@pytest.mark.parametrize("wrong", [5, None])
def test_only_functions_can_be_put_around_tasks(wrong: Any) -> None:
    app = Everbeat("sqlite:////nowhere/x.db")

    with pytest.raises(TypeError, match="around_task"):
        app.around_task(wrong)
    with pytest.raises(TypeError, match="on_child_start"):
        app.on_child_start(wrong)
    with pytest.raises(TypeError, match="without arguments"):
        app.on_child_stop(lambda needed: None)  # type: ignore[arg-type]


def test_a_coroutine_function_is_no_context_manager() -> None:
    async def around(task: Any) -> None: ...

    with pytest.raises(TypeError, match="needs one with a yield"):
        Everbeat("sqlite:////nowhere/x.db").around_task(around)  # type: ignore[type-var]


def test_a_burst_whose_processes_can_not_start_ends_and_says_why(stage: Stage) -> None:
    (stage.directory / "broken").touch()
    task = stage.send("add", a=1, b=2)

    code = stage.start("--burst").wait(PATIENCE)

    assert code == 1
    assert "the burst ended early, because processes for tasks do not start" in stage.log
    assert "RuntimeError: the pool can not be opened" in stage.log.rpartition("the burst ended early")[2]
    assert task.status() == "PENDING"
    assert [worker.status for worker in stage.app.store.workers()] == ["stopped"]
