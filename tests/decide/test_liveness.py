"""Whether silence means death, and whether the judge is fit to say so."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from everbeat.decide.liveness import gap_us, is_elsewhere, is_outage, is_overdue, threshold_us
from everbeat.model.worker import Host, LockIdentity, WorkerInfo, WorkerStatus

SECOND = 1_000_000
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
WORKER = WorkerInfo(
    id="w1", name="w1", status=WorkerStatus.ALIVE, queues=None, processes=1, async_slots=0, beat_interval_ms=30_000,
    version="1", started_at=LONG_AGO, last_beat_at=LONG_AGO, silent_for_us=0, same_clock=True, ended_at=None,
    end_reason=None, held=0, host=Host(name="h", boot_id="b", pid=1, pid_started=1, pid_namespace=1),
    lock=LockIdentity(path="/nowhere", device=1, inode=1),
)  # fmt: skip


@pytest.mark.parametrize(
    ("threshold_ms", "interval_ms", "seconds"),
    [(300_000, 30_000, 300), (60_000, 30_000, 105), (2_000, 1_000, 3.5), (1_000, 120_000, 420)],
)
def test_silence_is_allowed_for_three_and_a_half_beats_at_least(
    threshold_ms: int, interval_ms: int, seconds: float
) -> None:
    assert threshold_us(threshold_ms, interval_ms) == seconds * SECOND


@pytest.mark.parametrize(
    ("silent_s", "healthy_s", "overdue"),
    [(301, 301, True), (300, 301, False), (301, 300, False), (301, 0, False), (10_000, 299, False)],
)
def test_a_threshold_counts_only_while_the_store_was_healthy_for_as_long(
    silent_s: int, healthy_s: int, overdue: bool
) -> None:
    worker = replace(WORKER, silent_for_us=silent_s * SECOND)

    assert is_overdue(worker, 300_000, store_healthy_for_us=healthy_s * SECOND) is overdue


@pytest.mark.parametrize("interval_ms", [1_000, 1_500, 2_000, 10_000, 30_000, 120_000])
def test_a_gap_that_nobody_notices_makes_nobody_overdue(interval_ms: int) -> None:
    longest_silence = interval_ms * 1000 + gap_us(interval_ms)

    assert longest_silence <= threshold_us(0, interval_ms)


@pytest.mark.parametrize(
    ("beats", "waited_s", "outage"),
    [
        pytest.param([(0, 30)], 40, False, id="the only worker is on time"),
        pytest.param([(0, 30)], 60, True, id="the only worker is late"),
        pytest.param([(-100, 30), (0, 30)], 40, False, id="one is late, others are not"),
        pytest.param([(-100, 30)], 600, False, id="those who should have beaten were silent before"),
        pytest.param([], 600, False, id="nobody should have beaten"),
        pytest.param([(0, 30), (-1, 1)], 20, True, id="the most frequent beat counts"),
        pytest.param([(0, 30), (-20, 1)], 20, False, id="unless it had stopped before"),
    ],
)
def test_an_outage_is_a_time_in_which_somebody_should_have_beaten(
    beats: list[tuple[int, int]], waited_s: int, outage: bool
) -> None:
    """Beats are seconds relative to the last one written, and intervals in seconds."""
    last = 1_000 * SECOND
    facts = [(last + at * SECOND, interval * 1000) for at, interval in beats]

    assert is_outage(last, last + waited_s * SECOND, facts) is outage


@pytest.mark.parametrize(
    ("beat_age_s", "uptime_s", "same_clock", "elsewhere"),
    [
        (10, 3600, False, True),
        (104, 3600, False, True),
        (106, 3600, False, False),  # it has missed its beats
        (10, 5, False, False),  # this machine was restarted since
        (10, 3600, True, False),
        (-29, 3600, False, True),
        (-86_400, 3600, False, False),  # of a clock that was wrong
    ],
)
def test_a_fresh_beat_of_another_kernel_is_that_of_another_machine(
    beat_age_s: int, uptime_s: int, same_clock: bool, elsewhere: bool
) -> None:
    now = round(LONG_AGO.timestamp()) * SECOND + beat_age_s * SECOND
    worker = replace(WORKER, same_clock=same_clock)

    assert is_elsewhere(worker, now_us=now, booted_at_us=now - uptime_s * SECOND) is elsewhere
