"""What stands beside Everbeat: which jobs a peer gets, and that one that can not be measured stops nobody."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench import __main__ as main
from bench.environments import PEERS as REQUIREMENTS
from bench.environments import NotInstalled
from bench.peers.catalogue import PEERS
from bench.peers.kit import next_look, until_drained
from bench.servers import Servers
from bench.side import TITLES, Unmeasured, jobs, measure_floor, measure_peer, run_json
from rich.progress import Progress

from everbeat.bench.scale import Scale

HUEY = next(peer for peer in PEERS if peer.name == "huey")


def anything(group: str) -> bool:
    return True


def test_every_peer_has_pinned_versions_and_an_adapter() -> None:
    for peer in PEERS:
        lines = (REQUIREMENTS / f"{peer.name}.txt").read_text().splitlines()
        assert all("==" in line or "<" in line for line in lines if not line.startswith("#")), peer.name
        assert (REQUIREMENTS.parent / f"with_{peer.name}.py").exists()
        assert peer.quick in peer.variants


def test_all_settings_are_drained_and_the_rest_is_measured_once() -> None:
    made = [(job.name, job.variant, job.kind) for job in jobs(HUEY, 1.0, anything)]

    assert made == [
        ("drain", "default", "sync"),
        ("drain", "4 threads", "sync"),
        ("drain", "results", "sync"),
        ("drain", "fsync off", "sync"),
        ("enqueue", "default", "sync"),
        ("latency", "default", "sync"),
        ("idle", "default", "sync"),
    ]


def test_only_what_is_wanted_is_measured() -> None:
    assert {job.name for job in jobs(HUEY, 0.1, lambda group: group == "drain")} == {"drain"}


def test_a_peer_that_can_not_be_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EVERBEAT_BENCH_CACHE", str(tmp_path / "file"))

    figures, (missing,) = measure_peer(HUEY, jobs(HUEY, 0.1, anything), Servers(), lambda what: None)

    assert figures == []
    assert missing.subject == "huey"
    assert missing.reason.startswith("could not be installed: ")


def test_a_server_that_is_not_there_is_told_once_and_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVERBEAT_BENCH_REDIS", str(tmp_path / "no-redis"))
    servers = Servers()

    for _ in range(2):
        with pytest.raises(NotInstalled, match="no-redis"):
            servers.url("redis")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('no module')", "ended with 1: no module"),
        ('print(\'{"error": "the worker ended"}\')', "the worker ended"),
    ],
)
def test_what_a_peer_complains_of_is_kept(code: str, said: str) -> None:
    with pytest.raises(Unmeasured, match=said):
        run_json([sys.executable, "-c", code], {})


def test_what_a_peer_prints_before_its_figures_does_no_harm() -> None:
    code = "print('hello'); print('{\"drain.sync\": [1.5]}')"

    assert run_json([sys.executable, "-c", code], {}) == {"drain.sync": [1.5]}


@pytest.mark.parametrize(("left", "wait"), [(10_000, 0.2), (100, 0.05), (1, 0.005)])
def test_a_store_that_is_drained_is_looked_at_seldom_until_the_end_is_near(left: int, wait: float) -> None:
    assert next_look(passed=1.0, done=1_000, left=left) == pytest.approx(wait)


def test_a_drain_is_over_when_everything_is_finished() -> None:
    counts = iter([0, 0, 3, 7, 10])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        until_drained(lambda: next(counts), 10, worker=worker, seconds=30)

    assert list(counts) == []


def test_a_drain_has_a_floor_only_if_its_batch_is_known() -> None:
    (drain,) = measure_floor("sqlite", 0.01, Servers(), key="drain.async", batch=40.0)

    assert (drain.key, drain.subject, drain.batch) == ("drain.async", "limit", 40.0)
    assert min(drain.samples) > 0
    assert drain.key in TITLES
    assert measure_floor("sqlite", 0.01, Servers(), key="drain.sync.single", batch=None) == []


def test_everbeat_and_its_floor_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    take, floor = main.take, main.side.measure_floor
    monkeypatch.setattr(main, "take", lambda *a, **b: measured.append("everbeat") or take(*a, **b))  # type: ignore[func-returns-value]
    monkeypatch.setattr(main.side, "measure_floor", lambda *a, **b: measured.append("limit") or floor(*a, **b))  # type: ignore[func-returns-value]
    bench = main.Bench(Servers(), Scale.SMALL, ["enqueue.single"], Progress(disable=True))

    bench.measure(["everbeat", "limit"], ["sqlite"])

    assert measured == ["everbeat", "limit"] * main.ROUNDS
    assert [(one.subject, len(one.samples)) for one in bench.figures] == [("everbeat", 10), ("limit", 10)]
    assert bench.missing == []
