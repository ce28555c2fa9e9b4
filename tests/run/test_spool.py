"""Outcomes that the store does not take are on disk, and whoever comes next gives them to it."""

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.run.stage import SimulatedWorker, Stage
from tests.words import a_claim, a_policy, an_error, claim_one, enqueue, raised, requeue, succeeded

from everbeat.model.recovery import Verdict
from everbeat.model.state import Change
from everbeat.model.task import Outcome
from everbeat.run.replay import Replayed, replay_spools
from everbeat.run.spool import Spool, read
from everbeat.store.messages import Ending

AGAIN = a_policy(max_attempts=5, has_retry=True)


def a_spool(directory: Path, **facts: object) -> Spool:
    return Spool(directory, worker_id="w1", store_id="store-1", **facts)  # type: ignore[arg-type]


def records(worker: SimulatedWorker) -> list[tuple[str, int]]:
    kept, damage = read(worker.spool.path)
    assert damage is None
    return [(one.task, one.fence) for one in kept]


def counts(replayed: list[Replayed]) -> list[tuple[int, int, int]]:
    return [(one.settled, one.adopted, one.refused) for one in replayed]


# -- the file --------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_with_store_worker_task_and_fence(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    outcome = raised(an_error("UNHANDLED_EXCEPTION", "builtins.ValueError"))

    spool.add(a_claim(id="a", fence=7), outcome, 99)
    spool.add(a_claim(id="a", fence=7), outcome, 99)
    spool.sync(0, at_once=True)
    (kept,), damage = read(spool.path)

    assert (kept.store, kept.worker, kept.task, kept.fence, kept.pid) == ("store-1", "w1", "a", 7, 99)
    assert kept.outcome == outcome
    assert damage is None
    assert len(spool) == 1
    assert spool.path.stat().st_mode & 0o777 == 0o600


def test_a_record_that_was_cut_off_is_no_record(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    spool.add(a_claim(seq=1, id="a"), succeeded(), None)
    first = spool.path.stat().st_size
    spool.add(a_claim(seq=2, id="b"), succeeded(), None)
    whole = spool.path.read_bytes()

    for size in range(first, len(whole)):
        spool.path.write_bytes(whole[:size])
        kept, damage = read(spool.path)
        assert ([one.task for one in kept], damage) == (["a"], None)


def test_a_record_that_was_changed_is_not_believed_nor_what_follows(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    for seq in (1, 2, 3):
        spool.add(a_claim(seq=seq, id=f"task-{seq}"), succeeded(), None)
    content = bytearray(spool.path.read_bytes())
    content[len(content) // 2] ^= 1

    spool.path.write_bytes(content)
    kept, damage = read(spool.path)

    assert [one.task for one in kept] == ["task-1"]
    assert str(damage).startswith("a checksum is wrong at byte ")


def test_an_empty_spool_leaves_no_file_and_one_that_is_not_stays(tmp_path: Path) -> None:
    spool = a_spool(tmp_path)
    assert not spool.path.exists()
    spool.add(a_claim(seq=1), succeeded(), None)
    spool.add(a_claim(seq=2), succeeded(), None)

    spool.settle({(1, 1)})
    assert (len(spool), spool.path.stat().st_size > 0) == (1, True)
    spool.settle({(2, 1)})
    assert (len(spool), spool.path.stat().st_size) == (0, 0)
    spool.close()

    assert not spool.path.exists()


def test_a_disk_that_takes_no_more_is_told_and_leaves_whole_records(tmp_path: Path) -> None:
    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        spool = a_spool(tmp_path)
        for seq in range(100):
            spool.add(a_claim(seq=seq), succeeded(b"x" * 100), None)
        assert spool.trouble == f"{spool.path}: File too large"

    assert in_another_process(fill) == 0
    kept, damage = read(a_spool(tmp_path).path)
    assert (len(kept) > 1, damage) == (True, None)
    assert [one.seq for one in kept] == list(range(len(kept)))


def in_another_process(deed: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            deed()
        except BaseException:  # noqa: BLE001 - a failure, whatever it is
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- while the store is away -----------------------------------------------------------------------------------------


def test_nothing_is_written_while_the_store_answers(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    for _ in range(2):
        worker.crew.run(1)
        worker.turn()
        worker.keeper.tick()

    assert not worker.spool.path.exists()


def test_what_ends_after_a_failed_flush_is_written_before_the_next_is_sent(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    first, second = enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    worker.line.is_down = True

    worker.crew.run(1)
    worker.turn()
    assert not worker.spool.path.exists()
    worker.crew.run(2)
    stage.clock.advance(1)
    worker.turn()
    assert records(worker) == [(first, 1), (second, 1)]
    worker.line.is_down = False
    stage.clock.advance(2)
    worker.turn()

    assert stage.status(first, second) == ["COMPLETED", "COMPLETED"]
    assert records(worker) == []


def test_what_ended_is_written_down_when_its_flush_has_failed_and_not_only_when_it_is_sent_again(stage: Stage) -> None:
    worker, task = stage.worker(processes=1), enqueue(stage.store)
    worker.get_up()
    worker.line.is_down = True
    worker.crew.run(1)

    worker.turn()
    assert worker.dispatcher.wait_us() == 0
    worker.turn()

    assert records(worker) == [(task, 1)]
    assert worker.dispatcher.wait_us() > 0


def test_what_ends_while_nobody_knows_what_a_flush_did_is_written_down(stage: Stage) -> None:
    worker = stage.worker(processes=2)
    first, second = enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    worker.crew.run(1)
    worker.line.break_after_commit()
    worker.turn()
    worker.line.is_down = True

    worker.crew.run(2)
    worker.turn()
    assert worker.dispatcher.books.are_in_doubt
    assert records(worker) == [(first, 1), (second, 1)]
    worker.line.is_down = False
    stage.clock.advance(2)
    worker.turn()

    assert stage.status(first, second) == ["COMPLETED", "COMPLETED"]
    assert records(worker) == []


def test_a_flush_that_hangs_is_written_down_and_so_is_what_ends_meanwhile(stage: Stage) -> None:
    worker = stage.worker(processes=2, scribes=1)
    first, second = enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    worker.crew.run(1)
    worker.turn()
    worker.keeper.tick()
    assert not worker.spool.path.exists()  # it may be an ordinary commit still

    stage.clock.advance(0.06)
    worker.keeper.tick()
    assert records(worker) == [(first, 1)]
    worker.crew.run(2)
    worker.turn()
    assert records(worker) == [(first, 1), (second, 1)]
    worker.finish()

    assert stage.status(first, second) == ["COMPLETED", "COMPLETED"]
    assert records(worker) == []


def test_what_ended_before_a_flush_was_late_is_written_down_when_it_is(stage: Stage) -> None:
    worker = stage.worker(processes=2, scribes=1)
    first, second = enqueue(stage.store), enqueue(stage.store)
    worker.get_up()
    worker.crew.run(1)
    worker.turn()
    worker.crew.run(2)
    worker.turn()
    assert worker.dispatcher.wait_us() == 50_000

    stage.clock.advance(0.05)
    worker.turn()
    assert records(worker) == [(second, 1)]
    assert worker.dispatcher.wait_us() > 50_000
    worker.keeper.tick()

    assert sorted(records(worker)) == [(first, 1), (second, 1)]


def test_a_flush_that_hangs_while_nothing_runs_is_written_down(stage: Stage) -> None:
    worker = stage.worker(processes=1, scribes=1)
    task = enqueue(stage.store)
    worker.get_up()
    worker.crew.run(1)
    seen: list[list[tuple[str, int]]] = []

    def hang() -> None:
        stage.clock.advance(0.06)
        worker.keeper.tick()
        seen.append(records(worker))

    worker.line.meanwhile = hang
    worker.turn()

    assert seen == [[(task, 1)]]
    assert (stage.status(task), records(worker)) == (["COMPLETED"], [])


def test_a_flush_that_is_answered_just_when_it_is_late_is_not_written_down(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    keeper = worker.keeper
    keeper.begin(7, [Ending(claim=a_claim(), verdict=Verdict(change=Change.COMPLETE), outcome=succeeded())], 0)

    class Answered:
        """Whoever waits for the turn gets it after the dispatcher has taken up the answer."""

        def __enter__(self) -> None:
            keeper._turn = threading.Lock()
            keeper.end(7, is_stored=True)

        def __exit__(self, *_: object) -> None: ...

    keeper._turn = Answered()  # type: ignore[assignment]
    keeper.tick()

    assert not worker.spool.path.exists()


def test_an_interrupted_run_has_not_ended_and_is_not_kept(stage: Stage) -> None:
    worker = stage.worker(processes=1)
    enqueue(stage.store, policy=AGAIN)
    worker.get_up()
    worker.line.is_down = True
    worker.crew.begin(1)
    worker.crew.end(1, error=an_error("WORKER_STOPPED"))
    for _ in range(3):
        worker.turn()
        stage.clock.advance(1)

    assert not worker.spool.path.exists()


def test_a_full_spool_stops_what_has_not_begun_and_says_so(stage: Stage) -> None:
    worker = stage.worker(processes=1, spool_limit=150)
    worker.learn("add")
    tasks = [enqueue(stage.store) for _ in range(4)]
    worker.get_up()
    worker.line.is_down = True

    worker.crew.run(1, result=b"x" * 200)
    for _ in range(2):
        worker.turn()
        stage.clock.advance(1)
    worker.turn()
    assert not worker.crew.children[1].sent
    assert "limit" in str(worker.spool.trouble)
    worker.line.is_down = False
    stage.clock.advance(2)
    worker.turn()
    assert stage.status(*tasks) == ["COMPLETED", "PENDING", "PENDING", "PENDING"]
    assert worker.spool.trouble is None
    for _ in range(3):
        worker.turn()
        worker.crew.run(1)
    worker.turn()

    assert stage.status(*tasks) == ["COMPLETED"] * 4
    assert stage.events().count("spool.full") == 1


# -- by whoever comes next -------------------------------------------------------------------------------------------


def left_by_a_dead_worker(stage: Stage, *outcomes: Outcome, **facts: object) -> list[str]:
    """Tasks that a worker has run to their end while the store was away, before it was killed with everything."""
    dead = stage.worker("dead", processes=len(outcomes))
    tasks = [enqueue(stage.store, **facts) for _ in outcomes]
    dead.get_up()
    dead.line.is_down = True
    for slot, outcome in enumerate(outcomes, start=1):
        dead.crew.run(slot, result=outcome.result or b"", error=outcome.error)
    for _ in range(2):
        dead.turn()
        stage.clock.advance(1)
    dead.vanish()
    return tasks


def test_what_a_dead_worker_had_finished_is_stored_and_not_run_again(stage: Stage) -> None:
    done, failed = left_by_a_dead_worker(stage, succeeded(b"42"), raised())
    heir = stage.worker("heir")

    report = heir.recovery.run(actor="test", but="heir")

    assert stage.status(done, failed) == ["COMPLETED", "FAILED"]
    end = stage.store.finished(done)
    assert end is not None
    assert end.result == b"42"
    assert stage.task(failed).error_code == "UNHANDLED_EXCEPTION"
    assert report is not None
    assert report.recovered_tasks == []
    assert stage.events().count("spool.replayed") == 1
    assert not list(stage.directory.glob("worker-dead*"))


def test_the_next_in_line_for_an_exclusive_key_has_its_turn_once_the_outcome_is_stored(stage: Stage) -> None:
    (done,) = left_by_a_dead_worker(stage, succeeded(), exclusive_key="red")
    following = enqueue(stage.store, exclusive_key="red")

    replay_spools(stage.store)

    assert stage.status(done, following) == ["COMPLETED", "PENDING"]
    assert stage.task(following).waiting_for == "a free slot"


def test_a_failure_that_may_be_repeated_is_repeated_by_its_policy(stage: Stage) -> None:
    (task,) = left_by_a_dead_worker(stage, raised(), policy=AGAIN)

    assert counts(replay_spools(stage.store)) == [(1, 0, 0)]

    info = stage.task(task)
    assert (info.status, info.lost_count, [a.outcome for a in info.attempts]) == ("PENDING", 0, ["UNHANDLED_EXCEPTION"])


def test_a_second_replay_changes_nothing(stage: Stage) -> None:
    done, again = left_by_a_dead_worker(stage, succeeded(), raised(), policy=AGAIN)
    (path,) = stage.directory.glob("*.spool")
    content = path.read_bytes()
    replay_spools(stage.store)

    path.write_bytes(content)
    assert counts(replay_spools(stage.store)) == [(2, 0, 0)]

    assert stage.status(done, again) == ["COMPLETED", "PENDING"]
    assert len(stage.task(again).attempts) == 1
    assert stage.store.late_outcomes(done) == []


def test_what_comes_late_is_adopted_or_refused_and_kept(stage: Stage) -> None:
    free, taken = left_by_a_dead_worker(stage, succeeded(b"1"), succeeded(b"2"), policy=AGAIN)
    for claim in stage.store.owned_by("dead"):
        requeue(stage.store, claim)
    rival = stage.worker("rival", processes=1)
    rival.get_up()
    assert rival.holds() == [free]
    free, taken = taken, free

    assert counts(replay_spools(stage.store)) == [(0, 1, 1)]

    assert stage.status(free, taken) == ["COMPLETED", "RUNNING"]
    (late,) = stage.store.late_outcomes(taken)
    assert late.fence == 1


def test_the_spool_of_a_living_worker_is_left_alone(stage: Stage) -> None:
    worker = stage.worker("busy", processes=1)
    task = enqueue(stage.store)
    worker.get_up()
    worker.line.is_down = True
    worker.crew.run(1)
    for _ in range(2):
        worker.turn()
        stage.clock.advance(1)

    assert replay_spools(stage.store) == []

    assert records(worker) == [(task, 1)]
    assert stage.status(task) == ["RUNNING"]


def test_a_spool_of_another_store_is_left_and_told(stage: Stage) -> None:
    dead = stage.worker("dead")
    spool = Spool(stage.directory, worker_id="dead", store_id="another")
    claim_one_task = enqueue(stage.store)
    spool.add(claim_one(stage.store, "dead"), succeeded(), None)
    dead.vanish()

    (told,) = replay_spools(stage.store)

    assert told.left == "it belongs to another store (another)"
    assert spool.path.exists()
    assert stage.status(claim_one_task) == ["RUNNING"]
    heir = stage.worker("heir")
    heir.recovery.run(actor="test", but="heir")
    assert spool.path.exists()


def test_a_damaged_spool_gives_what_can_be_read_and_is_kept(stage: Stage) -> None:
    first, second = left_by_a_dead_worker(stage, succeeded(), succeeded())
    (path,) = stage.directory.glob("*.spool")
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    (told,) = replay_spools(stage.store)

    assert (told.settled, str(told.left)[:20]) == (1, "a checksum is wrong ")
    assert stage.status(first, second) == ["COMPLETED", "RUNNING"]
    assert [one.name for one in stage.directory.glob("*.spool*")] == ["worker-dead.spool.damaged"]


@pytest.mark.parametrize("rest", [b"", b"\x00", b"\xff\xff\xff\x7f\x00\x00\x00\x00rest"])
def test_a_torn_tail_is_tolerated(stage: Stage, rest: bytes) -> None:
    (task,) = left_by_a_dead_worker(stage, succeeded())
    (path,) = stage.directory.glob("*.spool")
    path.write_bytes(path.read_bytes() + rest)

    assert counts(replay_spools(stage.store)) == [(1, 0, 0)]

    assert stage.status(task) == ["COMPLETED"]
    assert not list(stage.directory.glob("*.spool*"))
