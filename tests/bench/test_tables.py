"""RESULTS.md and its charts are made of a run, and of nothing else."""

import re
import xml.etree.ElementTree as ET

from bench.charts import NAMES, VALUES, WIDTH, Bar, bars
from bench.tables import charts, render
from tests.bench.test_figures import figure, run

from everbeat.bench.figures import Figure, Missing, Run

MACHINE = {"cores": 2, "processor": "x", "memory_gb": 8, "system": "Linux", "python": "3.11", "sqlite": "3.40",
           "redis": "Redis 6.2"}  # fmt: skip


def drain(*samples: float, **given: object) -> Figure:
    return figure(*samples, **{"key": "drain.async", "title": "drain, async"} | given)


def sample_run(*figures: Figure, missing: list[Missing] | None = None) -> Run:
    return run(*figures, machine=MACHINE, missing=missing or [], load_before=[0.1], load_after=[0.2])


def cells(text: str, name: str) -> list[str]:
    """Of the row that begins with this name."""
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", text, re.M)
    return [str(cell).strip() for cell in row.split("|")]


def test_a_figure_is_also_a_share_of_the_floor_of_its_store() -> None:
    text = render(
        sample_run(
            drain(600.0, store="sqlite", target="at least 500"),
            drain(1000.0, subject="limit", store="sqlite"),
            drain(9.0, subject="limit", store="postgresql"),
        ),
        "x.json",
    )

    assert cells(text, "drain, async")[5:8] == ["60 % of 1,000", "at least 500", "yes"]
    assert "samples/x.json" in text


def test_the_batch_of_the_floor_stands_beside_it() -> None:
    text = render(
        sample_run(drain(600.0, store="sqlite"), drain(1000.0, subject="limit", store="sqlite", batch=83.33)), "x.json"
    )

    assert cells(text, "drain, async")[5] == "60 % of 1,000, 83.33 a commit"


def test_what_another_way_of_the_floor_came_to_stands_beside_it() -> None:
    floor = drain(1000.0, subject="limit", store="postgresql", note="two connections; one connection 700")
    text = render(sample_run(drain(600.0, store="postgresql"), floor), "x.json")

    assert cells(text, "drain, async")[5] == "60 % of 1,000, two connections; one connection 700"


def test_aims_come_first_and_are_counted() -> None:
    text = render(
        sample_run(
            drain(13_000.0, store="sqlite"),
            drain(5_000.0, key="drain.sync.frames", store="sqlite"),
            drain(20_000.0, subject="limit", store="sqlite"),
        ),
        "x.json",
    )

    assert text.index("## Aims") < text.index("## Everbeat on SQLite")
    assert "2 of 3 are reached; " in text
    assert cells(text, "drain, async, 1,000 slots, sqlite") == ["at least 12,000 tasks/s", "13,000 tasks/s", "yes"]
    assert cells(text, "drain, process slots, frames, sqlite")[2] == "**no**"


def test_of_latencies_the_best_peer_is_named_at_the_middle_and_at_95_percent() -> None:
    def pickup(*samples: float, **given: object) -> Figure:
        return drain(*samples, key="latency.pickup", better="lower", unit="ms", **given)

    text = render(
        sample_run(
            pickup(2.0, 2.0, 5.0, store="sqlite"),
            pickup(1.0, 1.0, 40.0, subject="celery", variant="fast", store="redis"),
            pickup(3.0, 3.0, 10.0, subject="rq", variant="fast", store="redis"),
        ),
        "x.json",
    )

    what = "From sending to the first line of the task, idle worker"
    assert cells(text, f"{what}, p50, sqlite") == ["2.00 ms", "1.00 ms: celery (fast)", "0.50x"]
    assert cells(text, f"{what}, p95, sqlite") == ["5.00 ms", "10.0 ms: rq (fast)", "2.00x"]


def test_peers_that_are_measured_alone_are_shown() -> None:
    text = render(sample_run(drain(7.0, subject="rq", variant="fast", store="redis")), "x.json")

    assert cells(text.partition("## What")[0], "rq (fast)")[2] == "7.00"
    assert ".svg" not in text


def test_peers_stand_beside_with_ratios_and_the_best_comes_first() -> None:
    text = render(
        sample_run(
            drain(100.0, 120.0, subject="pgqueuer", variant="fast", store="postgresql", version="1.6.0"),
            drain(330.0, store="sqlite"),
            drain(220.0, store="postgresql"),
        ),
        "x.json",
    )

    table = text.partition("### Working on async no-ops")[2]
    assert re.findall(r"^\| (Everbeat, \w+|pgqueuer)", table.partition("## What")[0], re.M) == [
        "Everbeat, SQLite", "Everbeat, PostgreSQL", "pgqueuer",
    ]  # fmt: skip
    assert cells(table.partition("###")[0].partition("## What")[0], "pgqueuer (fast)") == [
        "PostgreSQL", "2", "110", "100-120", "100", "3.00x", "2.00x", "-",
    ]  # fmt: skip
    assert "run again after 25 to 40 s" in text.partition("## What stands behind")[2]


def test_of_times_less_is_better() -> None:
    text = render(
        sample_run(
            drain(4.0, key="latency.pickup", better="lower", unit="ms", store="sqlite"),
            drain(12.0, key="latency.pickup", better="lower", unit="ms", subject="rq", variant="fast", store="redis"),
        ),
        "x.json",
    )

    assert "3.00x" in cells(text.partition("## What")[0], "rq (fast)")


def test_both_ways_of_running_sync_tasks_stand_beside_the_peers() -> None:
    made = sample_run(
        drain(900.0, key="drain.sync.frames", store="sqlite"),
        drain(200.0, key="drain.sync.single", store="sqlite"),
        drain(300.0, key="drain.sync", subject="huey", variant="default", store="sqlite"),
    )

    table = render(made, "x.json").partition("### Working on sync no-ops")[2]

    assert re.findall(r"^\| (Everbeat, SQLite, [\w ]+|huey \(default\)) \| SQLite", table, re.M) == [
        "Everbeat, SQLite, frames", "huey (default)", "Everbeat, SQLite, one at a time",
    ]  # fmt: skip
    assert cells(table.partition("## What")[0], "huey (default)")[5] == "3.00x"
    assert set(charts(made)) == {"drain.sync.svg"}


def test_who_could_not_be_measured_is_named() -> None:
    text = render(sample_run(missing=[Missing(subject="dbos", reason="could not be\ninstalled | at all")]), "x.json")

    assert "- dbos: could not be installed \\| at all" in text
    assert "Side by side" not in text


def test_a_chart_is_drawn_to_scale_and_can_be_read_as_xml() -> None:
    picture = ET.fromstring(bars("A & B <fast>", "tasks/s", [Bar(name="a", value=200.0, kind="own"),
                                                             Bar(name="b & c", value=50.0)]))  # fmt: skip
    space = "{http://www.w3.org/2000/svg}"
    lengths = [float(bar.attrib["width"]) for bar in picture.iter(f"{space}rect")]
    texts = [text.text for text in picture.iter(f"{space}text")]

    assert lengths == [WIDTH - NAMES - VALUES, (WIDTH - NAMES - VALUES) / 4]
    assert "A & B <fast>" in texts
    assert "b & c" in texts
    assert "200" in texts


def test_a_chart_of_nothing_and_of_zeros_can_be_drawn() -> None:
    ET.fromstring(bars("none", "ms", []))
    ET.fromstring(bars("zero", "ms", [Bar(name="a", value=0.0)]))


def test_nobody_is_drawn_alone() -> None:
    assert charts(sample_run(drain(1.0, store="sqlite"), drain(2.0, store="postgresql"))) == {}
