"""What is said of samples: middle, 95 of 100, worst, targets; and that a run can be read again."""

import json
from typing import Any

import pytest

from everbeat.bench.figures import Figure, Missing, NoRun, Run, joined, number, quantile, read_run, spread


def figure(*samples: float, **given: Any) -> Figure:
    return Figure(**{"key": "drain.async", "title": "drain", "unit": "tasks/s", "better": "higher"} | given,
                  samples=list(samples))  # fmt: skip


def run(*figures: Figure, **given: Any) -> Run:
    known = {"commit": "abc", "command": "bench", "started_at": "2026-01-01T00:00:00+00:00", "scale": "small"}
    return Run(**known | {"machine": {"cores": 2}} | given, figures=list(figures))


def test_of_rates_the_lowest_are_the_bad_ones() -> None:
    rates = figure(*range(1, 101), better="higher")

    assert (rates.median, rates.p95, rates.worst) == (50.5, 6, 1)


def test_of_times_the_highest_are_the_bad_ones() -> None:
    waits = figure(*range(1, 101), better="lower", unit="ms")

    assert (waits.median, waits.p95, waits.worst) == (50.5, 95, 100)


def test_a_single_sample_is_all_of_them() -> None:
    assert quantile([7.0], 0.95) == 7.0
    assert spread([7.0]) == "7.00"
    assert spread([12.0, 7.0, 1500.0]) == "7.00-1,500"


@pytest.mark.parametrize(
    ("target", "samples", "reached"),
    [
        ("at least 80,000", [79_999.0], False),
        ("at least 80,000", [80_000.0], True),
        ("under 1", [0.99], True),
        ("under 1", [1.0], False),
        ("p50 under 4", [1.0, 3.0, 90.0], True),
        ("p95 under 5", [1.0, 3.0, 90.0], False),
        ("p50 under 4 and p95 under 5", [1.0, 3.0, 90.0], False),
        ("p50 under 4 and p95 under 91", [1.0, 3.0, 90.0], True),
        ("", [1.0], None),
    ],
)
def test_a_target_is_read_from_its_words(target: str, samples: list[float], reached: bool | None) -> None:
    better = "higher" if "least" in target else "lower"

    assert figure(*samples, target=target, better=better).reached is reached


def test_figures_that_were_taken_in_turns_are_one() -> None:
    own = [figure(1.0, 3.0, batch=2.0, took_seconds=1.5), figure(5.0, batch=4.0, took_seconds=1.0)]
    floor = figure(9.0, subject="limit")

    mine, its_floor = joined([own[0], floor, own[1]])

    assert (mine.samples, mine.batch, mine.took_seconds) == ([1.0, 3.0, 5.0], 3.0, 2.5)
    assert mine.foreign_cores is None
    assert its_floor is floor


def test_a_run_is_read_as_it_was_written() -> None:
    written = run(
        figure(1.0, 2.0, store="sqlite", foreign_cores=0.2), missing=[Missing(subject="rq", reason="no Redis")]
    )

    assert read_run(written.to_json()) == written


def test_what_a_later_version_added_is_passed_over() -> None:
    said = json.loads(run(figure(1.0)).to_json())
    said["weather"] = "rain"
    said["figures"][0]["colour"] = "red"

    assert read_run(json.dumps(said)) == run(figure(1.0))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 2}', '{"format": 1}', '{"format": 1, "figures": [{}]}', '{"format": 1, "figures": 3}'],
)
def test_what_is_no_run_is_refused(text: str) -> None:
    with pytest.raises(NoRun):
        read_run(text)


def test_a_figure_without_samples_is_refused() -> None:
    with pytest.raises(NoRun, match="without samples"):
        read_run(run(figure()).to_json())


def test_figures_are_found_by_what_was_measured_and_who() -> None:
    ours, theirs = figure(1.0, store="sqlite"), figure(2.0, subject="huey", store="sqlite")

    found = run(ours, theirs)

    assert found.find("drain.async") == [ours]
    assert found.find("drain.async", subject="huey", store="sqlite") == [theirs]
    assert found.find("drain.async", store="postgresql") == []


def test_numbers_have_three_figures() -> None:
    assert [number(value) for value in (123_456.7, 99.94, 9.876, 0.0123)] == ["123,457", "99.9", "9.88", "0.01"]
