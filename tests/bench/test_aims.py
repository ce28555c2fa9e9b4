"""Aims are ratios within one run."""

from bench.aims import against_floor, against_peers, in_figures
from tests.bench.test_figures import figure, run


def test_the_best_setting_of_a_peer_counts() -> None:
    found = against_peers(
        run(
            figure(300.0, store="postgresql"),
            figure(100.0, subject="pgqueuer", variant="default", store="postgresql"),
            figure(250.0, subject="pgqueuer", variant="fast", store="postgresql"),
        )
    )

    (aim,) = [one for one in found if one.what == "async no-ops against pgqueuer, postgresql"]
    assert (aim.wanted, aim.found, aim.reached) == (1.5, 1.2, False)


def test_settings_that_give_up_durability_do_not_count() -> None:
    found = against_peers(
        run(
            figure(900.0, store="sqlite"),
            figure(100.0, key="drain.sync", subject="huey", variant="default", store="sqlite"),
            figure(800.0, key="drain.sync", subject="huey", variant="fsync off", store="sqlite"),
        )
    )

    (aim,) = [one for one in found if one.what == "async no-ops against huey, sqlite"]
    assert (aim.found, aim.reached) == (9.0, True)


def test_growth_is_held_against_the_same_store_without_it() -> None:
    found = against_peers(
        run(
            figure(80.0, key="growth.5m", store="sqlite"),
            figure(100.0, key="growth.0", store="sqlite"),
            figure(400.0, key="growth.0", store="postgresql"),
        )
    )

    grown = [one for one in found if one.what.startswith("async drain with 5,000,000")]
    assert [(one.found, one.reached) for one in grown] == [(0.8, False), (None, None)]


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    assert {(one.found, one.reached) for one in against_peers(run(figure(1.0, store="sqlite")))} == {(None, None)}


def test_each_figure_with_a_floor_is_a_share_of_it() -> None:
    (share,) = against_floor(
        run(
            figure(50.0, store="sqlite"),
            figure(100.0, subject="limit", store="sqlite"),
            figure(9.0, store="postgresql"),
        )
    )

    assert (share.found, share.reached) == (0.5, False)


def test_figures_to_reach_are_those_of_the_store_whether_measured_or_not() -> None:
    stated = {one.what: one for one in in_figures(run(figure(12_000.0, store="sqlite")))}

    assert (stated["drain, async, 1,000 slots, sqlite"].found, stated["drain, async, 1,000 slots, sqlite"].reached) == (
        "12,000 tasks/s", True,
    )  # fmt: skip
    unknown = stated["1,000,000 orphans recovered, sqlite"]
    assert (unknown.wanted, unknown.found, unknown.reached) == ("under 30 s", None, None)
    assert "kill -9 of a worker to restart on another host, sqlite" not in stated
    assert not any(what.endswith("postgresql") for what in stated)


def test_a_figure_in_two_parts_is_told_in_two_parts() -> None:
    times = figure(1.0, 1.0, 9.0, key="latency.pickup", unit="ms", better="lower", store="postgresql")

    (one,) = [one for one in in_figures(run(times)) if one.what.startswith("pickup")]

    assert (one.wanted, one.found, one.reached) == (
        "p50 under 2 and p95 under 5 ms", "p50 1.00, p95 9.00 ms", False,
    )  # fmt: skip


def test_a_backlog_is_held_against_the_same_store_without_it() -> None:
    found = against_peers(
        run(figure(95.0, key="growth.backlog", store="sqlite"), figure(100.0, key="growth.0", store="sqlite"))
    )

    assert [one.reached for one in found if "that wait" in one.what] == [True, None]
