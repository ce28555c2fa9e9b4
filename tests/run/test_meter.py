"""What a worker measures of itself."""

from everbeat.run.meter import Meter


def test_a_run_during_which_the_clock_stepped_back_took_no_time() -> None:
    meter = Meter()

    meter.ran("add", 2.0)
    meter.ran("add", -3600.0)

    assert meter.durations["add"].total == 2.0
    assert sum(meter.durations["add"].counts) == 2
