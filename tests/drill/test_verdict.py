"""The verdict sees what it is there to see: here are ledgers and stores made by hand, with one thing wrong in each."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.words import a_worker_info

from everbeat import TaskStatus
from everbeat.drill.harm import Done
from everbeat.drill.ledger import Line, Word
from everbeat.drill.plan import Deed, Kind, Sending
from everbeat.drill.verdict import Facts, Stored, judge, times
from everbeat.model.event import EventInfo
from everbeat.model.task import AttemptInfo, TaskInfo
from everbeat.model.worker import WorkerStatus

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = round(NOON.timestamp() * 1e6)


def sent(kind: Kind = Kind.AGAIN, *, key: str | None = None, id: str = "task-1") -> Sending:
    return Sending(id=id, kind=kind, work_ms=10, key=key, at=0.0)


def stored(
    result: int | None = 1, *, attempts: tuple[int, ...] = (), late: tuple[int, ...] = (), **more: Any
) -> Stored:
    facts: dict[str, Any] = {
        "id": "task-1", "name": "x", "queue": "q", "status": TaskStatus.COMPLETED, "priority": 100, "attempt": 1,
        "max_attempts": 9, "crash_count": 0, "lost_count": 0, "fence": 1, "worker_id": None, "created_at": NOON,
        "run_at": NOON, "started_at": NOON, "finished_at": NOON, "error_code": None, "error_message": None,
        "waiting_for": None, "quarantined": False,
    }  # fmt: skip
    before = [
        AttemptInfo(
            attempt=number, outcome="WORKER_CRASHED", error_code="WORKER_CRASHED", error_message=None, worker_id="w1",
            hostname=None, pid=6 + number, started_at=NOON, finished_at=NOON, will_retry=True,
        )
        for number in attempts
    ]  # fmt: skip
    return Stored(info=TaskInfo(**facts | more, attempts=before), result=result, late=frozenset(late))


def said(word: Word, at: float, *, fence: int = 1, attempt: int = 1, pid: int = 7, id: str = "task-1") -> Line:
    return Line(
        mono_ns=round(at * 1e9), wall_us=NOON_US + round(at * 1e6), pid=pid, task_id=id, attempt=attempt, fence=fence,
        word=word,
    )  # fmt: skip


RUN = [said(Word.BEGIN, 1), said(Word.END, 2)]
AGAIN = [said(Word.BEGIN, 3, fence=3, attempt=2), said(Word.END, 4, fence=3, attempt=2)]
RIGHT = Facts(accepted={"task-1": sent()}, stored={"task-1": stored()}, lines=RUN, done=[], events=[])


def facts(**more: Any) -> Facts:
    return replace(RIGHT, **more)


def test_a_task_that_ran_once_and_completed_breaks_no_promise() -> None:
    verdict = judge(RIGHT)

    assert verdict.ok
    assert (verdict.accepted, verdict.completed_once, verdict.retried, verdict.lost) == (1, 1, 0, 0)


def test_a_task_that_was_accepted_and_is_not_there_is_lost() -> None:
    verdict = judge(facts(stored={}))

    assert not verdict.ok
    assert verdict.lost == 1
    assert verdict.broken == ["task-1 (again) is lost: it was accepted, and the store does not know it"]


def test_a_task_that_has_not_ended_is_stuck() -> None:
    verdict = judge(facts(stored={"task-1": stored(None, status=TaskStatus.RUNNING, worker_id="w9")}))

    assert (verdict.ok, verdict.stuck) == (False, 1)
    assert "is stuck: RUNNING" in verdict.broken[0]


def test_a_run_that_was_cut_short_and_repeated_is_a_retry_and_no_duplicate() -> None:
    verdict = judge(facts(stored={"task-1": stored(3, attempts=(1,))}, lines=[RUN[0], *AGAIN]))

    assert verdict.ok
    assert (verdict.retried, verdict.runs, verdict.runs_cut_short, verdict.accepted_duplicates) == (1, 2, 1, 0)


def test_two_runs_that_end_are_one_completion_if_the_first_was_refused() -> None:
    verdict = judge(facts(stored={"task-1": stored(3, late=(1,))}, lines=[*RUN, *AGAIN]))

    assert verdict.ok
    assert (verdict.finished_again, verdict.accepted_duplicates) == (1, 0)


@pytest.mark.parametrize(
    ("kind", "lines", "result"),
    [
        (Kind.AGAIN, [*RUN, *RUN], 1),  # one ownership, twice
        (Kind.AGAIN, [*RUN, *AGAIN], 1),  # started again after a run of it had been believed
        (Kind.ONCE, [RUN[0], *AGAIN], 3),  # may run once
    ],
)
def test_a_run_too_many_is_an_accepted_duplicate(kind: Kind, lines: list[Line], result: int) -> None:
    verdict = judge(
        facts(accepted={"task-1": sent(kind)}, stored={"task-1": stored(result, attempts=(1, 2))}, lines=lines)
    )

    assert (verdict.ok, verdict.accepted_duplicates, verdict.completed_once) == (False, 1, 0)
    assert "ran although a run of it counted already" in verdict.broken[0]


def test_a_result_of_a_run_that_never_came_to_its_end_is_seen() -> None:
    verdict = judge(facts(lines=RUN[:1]))

    assert verdict.broken == ["task-1 (again) is COMPLETED with the result of fence 1, and no such run came to its end"]


def test_a_run_of_which_the_store_has_no_trace_is_seen() -> None:
    verdict = judge(facts(stored={"task-1": stored(3)}, lines=[RUN[0], *AGAIN]))

    assert verdict.broken == ["task-1 (again) ran under fence 1 (attempt 1), and the store has no trace of it"]


FAILED = {"status": TaskStatus.FAILED, "error_code": "WORKER_CRASHED"}
QUARANTINED = FAILED | {"quarantined": True}
WORKERS = [replace(a_worker_info("w1", pid=4711), started_at=NOON - timedelta(seconds=60))]


def killed(*pids: int) -> list[Done]:
    """Processes of w1."""
    return [
        Done(deed=Deed.KILL_PROCESS, wall_us=NOON_US, worker_pid=4711, pids=frozenset({pid})) for pid in pids
    ]  # fmt: skip


def hurt(deed: Deed = Deed.KILL_WORKER) -> Done:
    """What was done to w1."""
    return Done(deed=deed, wall_us=NOON_US, worker_pid=4711)


def test_what_may_be_repeated_has_to_complete_unless_its_own_process_died_too_often() -> None:
    quarantined = {"task-1": stored(None, **QUARANTINED, attempts=(1, 2, 3))}

    verdict = judge(facts(stored=quarantined, done=killed(7, 8, 9)))

    assert (verdict.ok, verdict.quarantined) == (True, 1)
    assert judge(facts(stored=quarantined, done=killed(7, 8, 99))).broken == [
        "task-1 (again) is in quarantine, and its own process was killed 2 times"
    ]
    once = stored(None, **FAILED, attempts=(1,))
    assert not judge(facts(stored={"task-1": once}, done=killed(7))).ok


@pytest.mark.parametrize("done", [killed(7), [hurt()], [hurt(Deed.FREEZE_LONG)]])
def test_what_may_run_once_may_fail_if_its_process_or_its_worker_was_hurt(done: list[Done]) -> None:
    wrong = {"accepted": {"task-1": sent(Kind.ONCE)}, "stored": {"task-1": stored(None, **FAILED, attempts=(1,))}}

    verdict = judge(facts(**wrong, lines=RUN[:1], done=done, workers=WORKERS))

    assert (verdict.ok, verdict.failed) == (True, 1)
    assert not judge(facts(**wrong, lines=RUN[:1], done=killed(99), workers=WORKERS)).ok


@pytest.mark.parametrize(
    ("kind", "found", "lines", "problem"),
    [
        (Kind.ONCE, stored(None, **FAILED), [], "neither its process nor its worker was hurt"),
        (Kind.ONCE, stored(None, **FAILED, attempts=(1,)), RUN, "neither its process nor its worker was hurt"),
        (Kind.ONCE, stored(None, **FAILED | {"error_code": "UNKNOWN_TASK"}), [], "no death explains that"),
        (Kind.ONCE, stored(None, status=TaskStatus.CANCELLED), [], "no death explains that"),
        (Kind.AGAIN, stored(None, **QUARANTINED, attempts=(1,)), RUN[:1], "its own process was killed 0 times"),
        (Kind.AGAIN, stored(None, **FAILED, lost_count=10), [], "after 0 deaths"),
    ],
)
def test_an_end_that_nothing_explains_breaks_a_promise(
    kind: Kind, found: Stored, lines: list[Line], problem: str
) -> None:
    verdict = judge(facts(accepted={"task-1": sent(kind)}, stored={"task-1": found}, lines=lines))

    assert [problem in said for said in verdict.broken] == [True]


def test_a_drill_in_which_nothing_was_accepted_shows_nothing() -> None:
    assert judge(facts(accepted={}, stored={}, lines=[])).broken == ["nothing was accepted, so nothing was tried"]


def test_what_kills_its_process_may_not_go_on_doing_so() -> None:
    lines = [said(Word.BEGIN, number, fence=number, attempt=number) for number in range(1, 51)]
    often = stored(None, **QUARANTINED, attempts=tuple(range(1, 51)))
    poison = {"accepted": {"task-1": sent(Kind.POISON)}}

    assert judge(facts(**poison, stored={"task-1": often}, lines=lines)).broken == [
        "task-1 (poison) kills its process and was let run 50 times"
    ]
    enough = stored(None, **QUARANTINED, attempts=(1, 2, 3))
    assert judge(facts(**poison, stored={"task-1": enough}, lines=lines[:3])).ok


def test_a_task_that_kills_its_process_has_to_be_stopped() -> None:
    verdict = judge(facts(accepted={"task-1": sent(Kind.POISON)}))

    assert verdict.broken == ["task-1 (poison) kills its process and is COMPLETED, not in quarantine"]


def test_two_runs_under_one_exclusive_key_that_overlap_are_seen() -> None:
    first, second = sent(Kind.EXCLUSIVE, key="k"), sent(Kind.EXCLUSIVE, key="k", id="task-2")
    both = {"accepted": {"task-1": first, "task-2": second}, "stored": {"task-1": stored(), "task-2": stored()}}
    other = [said(Word.BEGIN, 1.5, id="task-2"), said(Word.END, 3, id="task-2")]
    after = [said(Word.BEGIN, 2.5, id="task-2"), said(Word.END, 3, id="task-2")]

    assert judge(facts(**both, lines=[*RUN, *after])).ok
    assert judge(facts(**both, lines=[*RUN, *other])).broken == ["task-1 went on under key k after task-2 had begun"]


def test_a_worker_that_ended_by_itself_breaks_a_promise() -> None:
    assert judge(facts(complaints=["worker drill-1 ended by itself"])).broken == ["worker drill-1 ended by itself"]


def test_times_run_from_the_kill_to_the_event_and_to_the_next_run() -> None:
    killed = Done(deed=Deed.KILL_PROCESS, wall_us=NOON_US + 1_500_000, worker_pid=4711, pids=frozenset({7}))
    known = EventInfo(id=1, at=NOON + timedelta(seconds=1.512), name="child.died", task_id=None, worker_id="w1",
                      facts={"pid": 7})  # fmt: skip

    verdict = judge(
        facts(
            stored={"task-1": stored(3, attempts=(1,))},
            lines=[RUN[0], *AGAIN],
            done=[killed],
            events=[known],
            workers=WORKERS,
        )
    )

    assert verdict.time_to_detect_process.p50 == timedelta(milliseconds=12)
    assert verdict.time_to_restart.p99 == timedelta(seconds=1.5)
    assert verdict.time_to_detect_worker.count == 0
    assert verdict.deeds == {"task processes killed": 1}


def test_the_death_of_a_worker_is_known_by_its_event() -> None:
    killed = Done(deed=Deed.KILL_WORKER, wall_us=NOON_US, worker_pid=4711)
    known = EventInfo(
        id=1, at=NOON + timedelta(seconds=0.2), name="worker.dead", task_id=None, worker_id="w1", facts={}
    )

    verdict = judge(facts(done=[killed], events=[known], workers=WORKERS))

    assert verdict.time_to_detect_worker.p50 == timedelta(seconds=0.2)


def test_a_worker_that_was_killed_has_to_be_known_to_be_dead() -> None:
    alive = [replace(WORKERS[0], status=WorkerStatus.ALIVE)]
    unknown = Done(deed=Deed.KILL_WORKER, wall_us=NOON_US, worker_pid=99)

    assert judge(facts(done=[hurt()], workers=alive)).broken == [
        "worker w1 (process 4711) was killed, and nobody ever knew"
    ]
    everybody = Done(deed=Deed.KILL_EVERY_WORKER, wall_us=NOON_US, others=frozenset({4711}))
    assert not judge(facts(done=[everybody], workers=alive)).ok
    verdict = judge(facts(done=[hurt(), unknown, unknown], workers=WORKERS))
    assert verdict.ok
    assert verdict.not_timed == {"workers that counted as dead already": 1, "workers that had not registered yet": 2}


def test_a_process_that_was_killed_under_a_task_has_to_be_told_of() -> None:
    lines = [RUN[0], *AGAIN]
    cut = {"stored": {"task-1": stored(3, attempts=(1,))}, "lines": lines, "workers": WORKERS}
    under_it = replace(killed(7)[0], wall_us=NOON_US + 1_500_000)

    assert judge(facts(**cut, done=[under_it])).broken == [
        "process 7 was killed while it ran a task, and its worker never told of it"
    ]
    both = judge(facts(**cut, done=[under_it, replace(hurt(), wall_us=NOON_US + 2_000_000)]))
    assert (both.ok, both.not_timed["processes whose worker was hurt as well"]) == (True, 1)
    idle = judge(facts(done=killed(12)))
    assert (idle.ok, idle.not_timed) == (True, {"processes that ran nothing": 1})
    raised = [RUN[0], said(Word.RAISE, 1.2), *AGAIN]
    assert judge(facts(**cut | {"lines": raised}, done=[under_it])).not_timed == {"processes that ran nothing": 1}


def test_a_worker_that_stayed_frozen_until_others_ended_it_told_of_nothing() -> None:
    cut = {"stored": {"task-1": stored(3, attempts=(1,))}, "lines": [RUN[0], *AGAIN], "workers": WORKERS}
    frozen = replace(hurt(Deed.FREEZE_WORKER), wall_us=NOON_US - 6_000_000)
    under_it = replace(killed(7)[0], wall_us=NOON_US + 1_500_000)
    ended = EventInfo(
        id=1, at=NOON + timedelta(seconds=1.6), name="worker.dead", task_id=None, worker_id="w1", facts={}
    )

    assert not judge(facts(**cut, done=[frozen, under_it])).ok
    verdict = judge(facts(**cut, done=[frozen, under_it], events=[ended]))
    assert (verdict.ok, verdict.not_timed["processes whose worker was hurt as well"]) == (True, 1)


def test_a_worker_without_a_store_tells_nobody() -> None:
    cut = {"stored": {"task-1": stored(3, attempts=(1,))}, "lines": [RUN[0], *AGAIN], "workers": WORKERS}
    under_it = replace(killed(7)[0], wall_us=NOON_US + 1_500_000)
    later = replace(hurt(), wall_us=NOON_US + 10_000_000)
    away = Done(deed=Deed.KILL_DATABASE, wall_us=NOON_US + 1_000_000)

    assert not judge(facts(**cut, done=[under_it, later])).ok
    assert judge(facts(**cut, done=[away, under_it, later])).ok


def test_a_process_with_the_number_of_a_dead_one_is_another() -> None:
    """Numbers come round again within an hour."""
    later = replace(a_worker_info("w2", pid=4711), started_at=NOON + timedelta(seconds=60))
    died = EventInfo(id=1, at=NOON + timedelta(seconds=70), name="worker.dead", task_id=None, worker_id="w2", facts={})
    done = [replace(hurt(), wall_us=NOON_US + 1_000_000), replace(hurt(), wall_us=NOON_US + 69_000_000)]

    verdict = judge(facts(done=done, workers=[later], events=[died]))

    assert verdict.not_timed == {"workers that had not registered yet": 1}
    assert verdict.time_to_detect_worker.count == 1
    assert verdict.time_to_detect_worker.p50 == timedelta(seconds=1)


def test_a_worker_that_nobody_touched_may_not_be_declared_dead() -> None:
    told = EventInfo(id=1, at=NOON, name="worker.dead", task_id=None, worker_id="w1", facts={})

    (problem,) = judge(facts(events=[told], workers=WORKERS)).broken

    assert problem.startswith("worker w1 was declared dead, and nothing had been done to it")
    assert judge(facts(events=[told], workers=WORKERS, done=[hurt(Deed.FREEZE_WORKER)])).ok
    entered_again = replace(WORKERS[0], id="w2", started_at=NOON - timedelta(seconds=30))
    assert judge(facts(events=[told], workers=[*WORKERS, entered_again])).ok
    after_that = replace(entered_again, started_at=NOON + timedelta(seconds=1))
    assert not judge(facts(events=[told], workers=[*WORKERS, after_that])).ok


def test_percentiles_are_measured_values() -> None:
    assert times([]).p50 is None
    hundred = times(number / 1000 for number in range(1, 101))
    assert (hundred.p50, hundred.p95, hundred.p99) == tuple(timedelta(milliseconds=ms) for ms in (50, 95, 99))
