"""`everbeat bench`: real figures of a real store, and nothing left of it."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.by_hand import Command, send

from everbeat.bench.figures import read_run
from everbeat.store.interface import Store


def test_it_measures_compares_and_leaves_nothing(
    process: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    only = ("--scale", "small", "--only", "enqueue.bulk", "--only", "drain.async,latency.result")

    first = process("bench", *only, "--json")
    (tmp_path / "first.json").write_text(first.out)
    second = process("bench", *only, "--compare", "first.json")

    run = read_run(first.out)
    assert [figure.key for figure in run.figures] == ["enqueue.bulk", "drain.async", "latency.result"]
    assert all(min(figure.samples) > 0 for figure in run.figures)
    assert run.missing == []
    assert second.code == 0
    assert f"compared with {run.commit}" in second.out
    assert second.out.count("drain.async") == 1
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_named_store_is_measured_beside_and_never_written(process: Command, tmp_path: Path) -> None:
    done = process(
        "bench", "--db", f"sqlite:///{tmp_path}/new.db", "--scale", "small", "--only", "enqueue.single", "--json"
    )

    assert done.code == 0, done.err
    assert list(tmp_path.iterdir()) == []


def test_a_store_with_work_is_refused(everbeat: Command, store: Store, url: str) -> None:
    send(store)

    ended = everbeat("bench", "--db", url, "--scale", "small", "--only", "enqueue.single")

    assert ended.code == 2
    assert "holds 1 task and 0 living workers" in ended.err
    assert sum(one.count for one in store.counts()) == 1


def test_what_needs_a_larger_scale_is_said(everbeat: Command) -> None:
    ended = everbeat("bench", "--scale", "small", "--only", "growth.5m")

    assert ended.code == 1
    assert "not measured: growth.5m: only with --scale full" in ended.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "weather"], "nothing is called weather"),
        (["--compare", "nowhere.json"], "nowhere.json"),
        (["--db", "sqlite:////nowhere/at/all/x.db"], "there is no directory /nowhere/at/all"),
        (["--db", "mysql://x"], "is not a store"),
    ],
)
def test_what_was_asked_wrongly_is_usage(everbeat: Command, words: list[str], said: str) -> None:
    ended = everbeat("bench", "--scale", "small", *words)

    assert ended.code == 2
    assert said in ended.err


def test_a_file_that_is_no_run_can_not_be_compared_with(everbeat: Command, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"measures": []}')

    ended = everbeat("bench", "--compare", "old.json")

    assert ended.code == 2
    assert "not a benchmark's JSON" in ended.err


def test_the_list_names_every_measure(everbeat: Command) -> None:
    listed = json.loads(everbeat("bench", "--list", "--json").out)

    assert {"enqueue.single", "drain.sync.frames", "death.worker", "recovery.1m", "idle.memory"} <= {
        one["key"] for one in listed
    }


@pytest.mark.parametrize(
    ("word", "keys"),
    [
        ("latency", ["latency.pickup", "latency.result"]),
        ("drain.async", ["drain.async"]),
        ("kill -9", ["death.worker", "death.host"]),
        ("DRAIN", ["drain.sync.single", "drain.sync.frames", "drain.async", "drain.async-default"]),
    ],
)
def test_a_word_chooses_by_key_or_else_by_title(everbeat: Command, word: str, keys: list[str]) -> None:
    listed = json.loads(everbeat("bench", "--list", "--json", "--only", word).out)

    assert [one["key"] for one in listed] == keys


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_workers_and_removes_the_store(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path, how: signal.Signals
) -> None:
    bench = started("bench", "--scale", "full", "--only", "idle.cpu", TMPDIR=str(tmp_path))
    _until_worker_runs(tmp_path)

    bench.send_signal(how)

    assert bench.wait(40) != 0
    assert list(tmp_path.iterdir()) == []


def _until_worker_runs(directory: Path) -> None:
    from everbeat.bench.place import until

    until(lambda: list(directory.glob("everbeat-bench-*/bench.db.d/*.lock")), seconds=40)
