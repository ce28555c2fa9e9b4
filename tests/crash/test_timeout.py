"""Timeouts, with real processes: a task is told first, killed if it does not listen, and an outcome always wins."""

import os
import signal

from tests.crash.yard import Yard, is_alive, is_stopped


def words_of(yard: Yard, task_id: str) -> list[str]:
    return [line.word for line in yard.ledger() if line.task_id == task_id]


def end_of(yard: Yard, task_id: str) -> tuple[str, str | None]:
    yard.until_ended([task_id])
    info = yard.task(task_id)
    return info.status.value, info.error_code


def test_a_task_over_its_time_is_told_and_its_process_goes_on(yard: Yard) -> None:
    yard.worker(processes=1)
    task, after = yard.send("timed_heeds", "never"), yard.send("quick")

    assert end_of(yard, task) == ("FAILED", "TASK_TIMEOUT")
    assert words_of(yard, task) == ["start", "interrupted"]
    yard.until_ended([after])
    assert yard.starts(after)[0].pid == yard.starts(task)[0].pid
    yard.audit([task, after])


def test_a_task_that_goes_on_when_told_to_stop_is_killed_and_its_neighbours_are_not(yard: Yard) -> None:
    worker = yard.worker(processes=2)
    neighbour, task = yard.send("gated", "open"), yard.send("timed_heeds_not", "never")
    process = yard.until_started(task).pid

    assert end_of(yard, task) == ("FAILED", "TASK_TIMEOUT")
    assert words_of(yard, task) == ["start", "interrupted"]
    assert not is_alive(process)
    yard.until(lambda: len(worker.slots) == 3, "the process is replaced")
    yard.open("open")
    yard.until_ended([neighbour])
    yard.audit([neighbour, task])


def test_a_task_in_c_code_that_no_exception_reaches_is_killed(yard: Yard) -> None:
    yard.worker(processes=1)
    task = yard.send("timed_counts")
    process = yard.until_started(task).pid

    assert end_of(yard, task) == ("FAILED", "TASK_TIMEOUT")
    assert words_of(yard, task) == ["start"]
    assert not is_alive(process)
    (attempt,) = yard.full(task).attempts
    assert (attempt.outcome, attempt.pid, attempt.will_retry) == ("TASK_TIMEOUT", process, False)


def test_a_timeout_is_retried_like_any_failure(yard: Yard) -> None:
    yard.worker(processes=1)
    task = yard.send("timed_heeds_twice", "never")

    assert end_of(yard, task) == ("FAILED", "TASK_TIMEOUT")
    assert [(a.attempt, a.outcome) for a in yard.full(task).attempts] == [(1, "TASK_TIMEOUT"), (2, "TASK_TIMEOUT")]


def test_what_a_task_returns_after_it_was_told_to_stop_counts(yard: Yard) -> None:
    yard.worker(processes=1)
    task = yard.send("timed_returns_late", "never")

    assert end_of(yard, task) == ("COMPLETED", None)
    assert words_of(yard, task) == ["start", "interrupted", "end"]
    yard.audit([task])


def test_an_outcome_in_the_channel_wins_over_a_timeout_that_passed_meanwhile(yard: Yard) -> None:
    """The supervisor is stopped while the task runs, and wakes up when its time is long over."""
    worker = yard.worker(processes=1)
    task = yard.send("timed_maybe", "open", True)
    process = yard.until_started(task).pid
    yard.until(lambda: is_stopped(worker.pid), "the supervisor is stopped")
    yard.open("open")
    yard.until(lambda: words_of(yard, task) == ["start", "end"], "the task has ended")
    yard.until(lambda: yard.has_passed(yard.starts(task)[0].at_ns, 3.0), "its time and its grace are over")

    worker.thaw()

    assert end_of(yard, task) == ("COMPLETED", None)
    assert is_alive(process)
    yard.audit([task])


def test_a_stopped_process_is_killed_for_a_timeout(yard: Yard) -> None:
    yard.worker(processes=1)
    task = yard.send("timed_heeds", "never")
    process = yard.until_started(task).pid
    os.kill(process, signal.SIGSTOP)

    assert end_of(yard, task) == ("FAILED", "TASK_TIMEOUT")
    assert not is_alive(process)


# -- async tasks ------------------------------------------------------------------------------------------------------


def test_an_async_task_over_its_time_is_cancelled_and_its_neighbours_are_not(yard: Yard) -> None:
    yard.worker(processes=1)
    neighbour, task = yard.send("a_gated", "open"), yard.send("timed_a_gated", "never")

    assert end_of(yard, task) == ("FAILED", "TASK_TIMEOUT")
    yard.open("open")
    yard.until_ended([neighbour])
    assert yard.starts(task)[0].pid == yard.starts(neighbour)[0].pid
    yard.audit([neighbour, task])


def test_neighbours_of_an_async_task_that_does_not_listen_may_end_and_new_ones_run_elsewhere(yard: Yard) -> None:
    yard.worker(processes=1)
    neighbour, task = yard.send("a_gated", "open"), yard.send("timed_a_heeds_not", "never")
    process = yard.until_started(task).pid
    yard.until(lambda: "interrupted" in words_of(yard, task), "it was told")

    def is_served_elsewhere() -> bool:
        return yard.starts(yard.app.tasks["a_quick"].enqueue().id) == [] and any(
            line.name == "a_quick" and line.pid != process for line in yard.ledger()
        )

    yard.until(is_served_elsewhere, "another process serves")
    assert is_alive(process)
    yard.open("open")

    assert end_of(yard, neighbour) == ("COMPLETED", None)
    assert end_of(yard, task) == ("FAILED", "TASK_TIMEOUT")
    assert not is_alive(process)


def test_neighbours_of_an_async_task_that_blocks_its_process_are_run_again_if_they_may(yard: Yard) -> None:
    yard.worker(processes=1)
    once, again = yard.send("a_gated", "open"), yard.send("a_gated_again", "open")
    yard.until_started(once)
    yard.until_started(again)
    task = yard.send("timed_a_blocks", 600)

    assert end_of(yard, task) == ("FAILED", "TASK_TIMEOUT")
    assert end_of(yard, once) == ("FAILED", "NEIGHBOUR_CRASHED")
    second = yard.until_started(again, 2)
    yard.open("open")
    assert end_of(yard, again) == ("COMPLETED", None)
    info = yard.full(again)
    assert (info.crash_count, [a.outcome for a in info.attempts]) == (0, ["NEIGHBOUR_CRASHED"])
    assert second.pid != yard.starts(task)[0].pid
    yard.audit([once, again, task])
