"""Decide whether silence means death.

Pure. Proof (a freed lock, another boot) needs no decision; this is the last resort, when only the clock speaks. The
judge must be fit to judge (PROTOCOL 14): a threshold counts only while the store has been written without an outage for
that long, so that after one the living can beat first.
"""

from collections.abc import Iterable

from everbeat.model.worker import WorkerInfo

MISSED_BEATS = 3.5


def threshold_us(threshold_ms: int, beat_interval_ms: int) -> int:
    """The silence that is allowed: what was configured, and never less than three and a half beats."""
    return round(max(threshold_ms, MISSED_BEATS * beat_interval_ms) * 1000)


def is_overdue(worker: WorkerInfo, threshold_ms: int, *, store_healthy_for_us: int) -> bool:
    allowed = threshold_us(threshold_ms, worker.beat_interval_ms)
    return worker.silent_for_us > allowed and store_healthy_for_us > allowed


def is_elsewhere(worker: WorkerInfo, *, now_us: int, booted_at_us: int) -> bool:
    """Whether a worker of another kernel seems to be alive: it has beaten of late, after this kernel was started, so it
    is not what an earlier boot of this machine left (PROTOCOL 17). A beat in the future comes from a wrong
    clock."""
    beat_us, interval_us = round(worker.last_beat_at.timestamp() * 1_000_000), worker.beat_interval_ms * 1000
    is_fresh = -interval_us < now_us - beat_us < MISSED_BEATS * interval_us
    return not worker.same_clock and is_fresh and beat_us > booted_at_us


def gap_us(beat_interval_ms: int) -> int:
    """The longest pause between two beats of a worker for which nothing stood still. One beat more is at most three
    intervals, so a worker that lost beats in a pause which went unnoticed is not overdue yet."""
    return beat_interval_ms * 1500 + min(1_000_000, beat_interval_ms * 500)


def is_outage(last_write_us: int, now_us: int, beats: Iterable[tuple[int, int]]) -> bool:
    """Whether somebody should have beaten since the last beat that was written, and could not.

    `beats` are the last beat (microseconds) and the interval (milliseconds) of every worker that counts as alive. Only
    workers that were still on time when the last beat was written are asked. So neither one sick worker that beats late
    nor the pause between two burst workers is an outage, and neither can postpone the judgement of a third for ever.
    """
    waited = now_us - last_write_us
    return any(
        waited > gap_us(interval) and abs(last_write_us - beat_us) <= gap_us(interval) for beat_us, interval in beats
    )
