"""A run held against an earlier one."""

from tests.bench.test_figures import figure, run

from everbeat.bench.compare import Change, compared


def test_a_rate_that_doubled_is_better() -> None:
    (row,) = compared(run(figure(100.0, 110.0)), run(figure(200.0, 220.0)))

    assert (row.change, row.ratio) == (Change.BETTER, 2.0)


def test_a_time_that_doubled_is_worse() -> None:
    (row,) = compared(run(figure(1.0, 1.1, better="lower")), run(figure(2.0, 2.2, better="lower")))

    assert (row.change, row.ratio) == (Change.WORSE, 0.5)


def test_samples_that_overlap_prove_no_difference() -> None:
    (row,) = compared(run(figure(100.0, 120.0, 140.0)), run(figure(130.0, 150.0, 170.0)))

    assert row.change is Change.SAME


def test_one_outlier_among_many_samples_does_not_make_two_runs_the_same() -> None:
    waits = figure(*[1.0] * 20, 50.0, better="lower")
    later = figure(*[3.0] * 20, 0.5, better="lower")

    (row,) = compared(run(waits), run(later))

    assert row.change is Change.WORSE


def test_a_single_sample_counts_within_a_twentieth() -> None:
    near, far = compared(run(figure(100.0), figure(100.0, key="other")), run(figure(104.0), figure(120.0, key="other")))

    assert (near.change, far.change) == (Change.SAME, Change.BETTER)


def test_what_only_one_run_has_is_named() -> None:
    new, gone = compared(run(figure(1.0, store="sqlite")), run(figure(1.0, store="postgresql")))

    assert (new.change, new.before, new.now, new.ratio) == (Change.NEW, None, 1.0, None)
    assert (gone.change, gone.before, gone.now, gone.ratio) == (Change.GONE, 1.0, None, None)
