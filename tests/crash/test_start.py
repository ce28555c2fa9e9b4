"""Starting, clocks and senders: what surrounds a worker goes wrong."""

from pathlib import Path

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Yard
from tests.words import a_worker

from everbeat import TaskStatus
from everbeat.clock import SystemClock
from everbeat.model.worker import Host, WorkerStatus
from everbeat.store.interface import Store
from everbeat.store.sqlite.store import SQLiteStore
from everbeat.testing import shift_clock

HOUR = 3600


@pytest.mark.parametrize("round_", range(10))
def test_two_workers_that_start_at_once_on_an_empty_store_both_work(yard: Yard, round_: int) -> None:
    first, second = yard.worker(ready=False), yard.worker(ready=False)
    for worker in (first, second):
        yard.until_ready(worker)
    ids = [yard.send("gated", "go") for _ in range(4)]
    for task_id in ids:
        yard.until_started(task_id)
    yard.open("go")
    yard.until_ended(ids)

    yard.audit(ids)
    assert {yard.task(task_id).worker_id for task_id in ids} == {first.id, second.id}
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert not yard.events("worker.dead")
    assert (first.stop(), second.stop()) == (0, 0)


def test_many_openers_of_an_empty_store_make_one_schema(yard: Yard) -> None:
    senders = [yard.producer("3", "quick") for _ in range(5)]
    worker = yard.worker()

    assert [sender.ended() for sender in senders] == [0] * 5
    ids = [task_id for sender in senders for task_id in sender.said().split()]
    yard.until_ended(ids)
    yard.audit(ids)
    assert len(yard.tasks()) == 15
    assert yard.query("SELECT count(*) FROM everbeat_meta WHERE key = 'store_id'") == [(1,)]
    assert worker.stop() == 0


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_step_of_the_wall_clock_kills_nobody_and_stops_nothing(
    make_yard: MakeYard, tmp_path: Path, hours: int
) -> None:
    yard, clock = make_yard(**FAST), tmp_path / "clock"
    shift_clock(clock, 0)
    workers = [yard.worker(clock_file=clock, ready=False) for _ in range(2)]
    for worker in workers:
        yard.until_ready(worker)
    running = [yard.send("gated", "go"), yard.send("gated_again", "go"), yard.send("a_gated", "go")]
    soon, never = yard.send("quick", delay=HOUR / 2), yard.send("quick", delay=10 * HOUR)
    for task_id in running:
        yard.until_started(task_id)

    step(clock, hours * HOUR)
    for worker in workers:
        until_beaten(yard, worker.id, times=6)
    ids = [
        yard.send("quick"),
        yard.send("quick_again"),
        yard.send("fails_twice") if hours > 0 else yard.send("a_quick"),
    ]
    yard.until_ended(ids)
    yard.open("go")
    yard.until_ended(running)
    if hours > 0:
        yard.until_ended([soon])
    else:
        assert yard.status(soon) is TaskStatus.PENDING

    yard.audit([*running, *ids[:2]])
    assert yard.status(never) is TaskStatus.PENDING
    assert {yard.status(task_id) for task_id in [*running, *ids]} == {TaskStatus.COMPLETED}
    assert {len(yard.starts(task_id)) for task_id in running} == {1}
    assert not yard.events("worker.dead")
    assert not yard.events("task.recovered")
    assert [worker.stop() for worker in workers] == [0, 0]


def test_a_task_that_waits_for_a_time_starts_when_a_clock_that_was_set_back_is_put_right(
    make_yard: MakeYard, tmp_path: Path
) -> None:
    yard, clock = make_yard(**FAST), tmp_path / "clock"
    shift_clock(clock, -HOUR)
    worker = yard.worker(clock_file=clock)
    delayed, ready = yard.send("quick", delay=0.5), yard.send("quick")
    yard.until_ended([ready])
    until_beaten(yard, worker.id, times=3)
    assert yard.status(delayed) is TaskStatus.PENDING

    step(clock, 0)

    yard.until_ended([delayed])
    assert worker.stop() == 0


def test_an_application_that_can_not_be_imported_ends_the_worker_with_its_own_traceback(
    yard: Yard, tmp_path: Path
) -> None:
    yard.may_complain = True
    (tmp_path / "broken.py").write_text("raise RuntimeError('the database of the shop is away')\n")
    worker = yard.worker(target="broken:app", directory=tmp_path, ready=False)

    assert worker.ended() == 1
    assert worker.said().count("Traceback") == 1
    assert worker.said().endswith("RuntimeError: the database of the shop is away\n")
    assert not yard.processes()


@pytest.mark.parametrize(
    ("target", "message"), [("nowhere:app", "nowhere"), ("ground:nothing", "nothing"), ("ground:make_app", "make_app")]
)
def test_an_application_that_is_not_there_is_named_and_the_exit_code_says_usage(
    yard: Yard, target: str, message: str
) -> None:
    worker = yard.worker(target=target, ready=False)

    assert worker.ended() == 2
    assert message in worker.said()
    assert "Traceback" not in worker.said()


def test_a_task_is_there_when_its_sender_is_killed_right_after_enqueue_returned(yard: Yard) -> None:
    senders = [yard.producer("--die", "1", "quick") for _ in range(10)]
    assert {sender.ended() for sender in senders} == {-9}

    ids = [sender.said().strip() for sender in senders]
    yard.worker("--burst").ended()

    assert len(set(ids)) == 10
    yard.audit(ids)
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}


def test_the_files_of_a_worker_that_was_killed_before_it_entered_the_store_are_removed_by_the_next(yard: Yard) -> None:
    doomed = yard.worker(crash_at="register.before_commit", ready=False)
    assert doomed.ended() == -9
    assert {path.suffix for path in yard.store.state_directory.glob("worker-*")} == {".lock", ".journal"}
    bystander = yard.worker()

    worker = yard.worker()

    names = {path.stem for path in yard.store.state_directory.glob("worker-*")}
    assert names == {f"worker-{bystander.id}", f"worker-{worker.id}"}
    assert (bystander.stop(), worker.stop()) == (0, 0)


ELSEWHERE = Host(name="other", boot_id="another kernel", pid=1, pid_started=1, pid_namespace=1)


class AnotherKernel(SystemClock):
    id = "another kernel"


def foreign(yard: Yard) -> Store:
    """The same file, opened on another machine."""
    return SQLiteStore(yard.path / "yard.db", clock=AnotherKernel())


def test_a_store_that_another_machine_is_using_is_refused_and_nothing_is_changed(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    foreign(yard).register(a_worker("foreign", host=ELSEWHERE, beat_interval_ms=1000))
    task_id = yard.send("quick")

    worker = yard.worker(ready=False)
    yard.until(lambda: yard.store.beat("foreign", []).alive and worker.process.poll() is not None, "it has ended")

    assert worker.ended() == 3
    assert "is in use by another machine: worker foreign on other has just beaten" in worker.said()
    assert [(row.id, row.status) for row in yard.store.workers()] == [("foreign", WorkerStatus.ALIVE)]
    assert yard.status(task_id) is TaskStatus.PENDING
    assert not list(yard.store.state_directory.glob("worker-*"))


def test_what_only_seems_to_live_elsewhere_is_recovered_once_it_has_missed_its_beats(make_yard: MakeYard) -> None:
    yard = make_yard(**FAST)
    foreign(yard).register(a_worker("foreign", host=ELSEWHERE, beat_interval_ms=5000))

    worker = yard.worker()

    assert "worker.elsewhere" in worker.said()
    yard.until_event("worker.dead", worker_id="foreign")
    assert worker.stop() == 0


def test_workers_whose_host_is_the_same_do_not_disturb_each_other_when_one_starts(yard: Yard) -> None:
    busy = yard.worker()
    ids = [yard.send("gated", "go"), yard.send("a_gated", "go")]
    for task_id in ids:
        yard.until_started(task_id)
    others = [yard.worker(ready=False) for _ in range(3)]
    for other in others:
        yard.until_ready(other)
    yard.open("go")
    yard.until_ended(ids)

    yard.audit(ids)
    assert {yard.task(task_id).worker_id for task_id in ids} == {busy.id}
    assert {yard.status(task_id) for task_id in ids} == {TaskStatus.COMPLETED}
    assert {row.status for row in yard.store.workers()} == {WorkerStatus.ALIVE}


def step(clock: Path, seconds: float) -> None:
    """Move the clock of running workers. In place: a mapped file that becomes shorter ends its readers with SIGBUS."""
    moved = clock.with_suffix(".moved")
    shift_clock(moved, seconds)
    with clock.open("r+b") as file:
        file.write(moved.read_bytes())


def until_beaten(yard: Yard, worker_id: str, times: int) -> None:
    before = beats(yard, worker_id)
    yard.until(lambda: beats(yard, worker_id) >= before + times, f"worker {worker_id} has beaten {times} times")


def beats(yard: Yard, worker_id: str) -> int:
    return int(yard.query("SELECT beat_seq FROM everbeat_workers WHERE id = ?", worker_id)[0][0])
