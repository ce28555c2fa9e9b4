"""Faults beside peers: what is counted, what the tables say, and that a trial of Everbeat goes all its way."""

import sys
import time
from pathlib import Path

from bench.crash import tables
from bench.crash.__main__ import GUARANTEES, RESULTS, read_samples
from bench.crash.account import Account, Run, Trial, account_of, read_trial
from bench.crash.faults import FAULTS, Fault, Happened, always, kill_worker, watch
from bench.crash.stage import VICTIM, Stage
from bench.crash.systems import SYSTEMS
from bench.environments import PEERS as REQUIREMENTS

EVERBEAT = SYSTEMS[0]
AT_ONCE = Fault(name="kill-worker", title="", explained="", applies=always, happens=kill_worker, least_seconds=0.0)


def run(number: int, began: float, ended: float | None) -> Run:
    return Run(number=number, began=began, ended=ended)


def trial(runs: list[Run], states: dict[int, str], *, fault: str = "kill-worker", **more: object) -> Trial:
    return Trial(
        variant="default", fault=fault, taken_at="2026-11-16T12:00:00+00:00", commit="abc", load=[0.1, 0.2],
        accepted=sorted(states), runs=runs, states=states, watched=70.0, **more,  # type: ignore[arg-type]
    )  # fmt: skip


HIT = trial(
    [
        run(1, -2.0, -1.0),
        run(2, -1.0, None),
        run(2, 0.5, 1.5),
        run(3, -1.0, None),
        run(4, -1.0, None),
        run(5, -1.0, None),
        run(6, -1.0, 2.0),
        run(8, -1.0, 2.0),
    ],
    {1: "done", 2: "done", 3: "held", 4: "gone", 5: "failed", 6: "held", 7: "waiting", 8: "gone"},
)


def test_every_task_is_counted_once_by_what_the_store_says() -> None:
    assert account_of(HIT) == Account(
        accepted=8, never=1, once=6, more=1, completed=2, failed=1, stuck=3, lost=1, forgotten=1, denied=1,
        again=[0.5], needless=0, interrupted=4, left=1,
    )  # fmt: skip


def test_a_trial_in_short_says_everything_that_went_wrong() -> None:
    assert tables.in_short(HIT) == (
        "2/8; 1 failed; 3 stuck; 1 **lost**; 1 forgotten; 1 ran again; after 0.5 / 0.5 s, 1 not within 70 s; "
        "1 of those not completed had run to the end"
    )


def test_where_nothing_went_wrong_there_is_nothing_to_say() -> None:
    assert tables.in_short(trial([run(1, 0.1, 0.2)], {1: "done"})) == "1/1"


def test_who_was_not_interrupted_and_ran_again_did_so_needlessly() -> None:
    assert tables.in_short(trial([run(1, -1.0, 2.0), run(1, 1.0, 4.0)], {1: "done"})) == (
        "1/1; 1 ran again; 1 ran again needlessly"
    )  # fmt: skip


def test_the_task_that_kills_is_told_apart_from_the_innocent() -> None:
    runs = [run(0, 0.0, None), run(0, 1.5, None), run(1, 0.0, None), run(1, 2.0, 6.0)]

    assert tables.in_short(trial(runs, {0: "failed", 1: "done"}, fault="poison")) == (
        "1/1; 1 ran again; the culprit ran 2 times, then failed"
    )


def test_of_a_frozen_run_that_was_replaced_it_is_told_who_was_believed() -> None:
    runs = [run(1, -1.0, 12.0), run(1, 10.0, 22.0), run(2, -1.0, 12.0), run(2, 10.0, 22.0)]
    frozen = trial(runs, {1: "done", 2: "done"}, fault="freeze", frozen=[1, 2], believed=[2])

    assert tables.in_short(frozen) == (
        "2/2; 2 ran again; after 10.0 / 10.0 s; the old run was believed in 1 of 2"
    )  # fmt: skip


def test_a_trial_is_the_same_when_it_was_kept() -> None:
    assert read_trial(HIT.to_json()) == HIT


def test_a_table_is_put_between_its_marks_and_nothing_else_changes() -> None:
    page = f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n"

    assert tables.put_into(page, "new") == f"before\n{tables.BEGIN}\nnew\n{tables.END}\nafter\n"


def test_the_published_tables_are_those_of_the_samples() -> None:
    kept = [read_samples(system) for system in SYSTEMS]

    assert tables.render(kept) == RESULTS.read_text()
    assert tables.put_into(GUARANTEES.read_text(), tables.summary(kept)) == GUARANTEES.read_text()


def test_every_system_has_pinned_versions_an_adapter_and_a_sample_of_each_fault() -> None:
    for system in SYSTEMS:
        assert (REQUIREMENTS.parents[1] / "crash" / f"with_{system.adapter}.py").exists()
        assert not system.is_peer or (REQUIREMENTS / f"{system.adapter}.txt").exists()
        wanted = {(variant, fault.name) for variant in system.variants for fault in FAULTS
                  if fault.applies(system, variant)}  # fmt: skip
        assert {(one.variant, one.fault) for one in read_samples(system).trials} == wanted, system.name


def test_tasks_of_a_killed_worker_are_begun_again_and_seen_to_end(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    stage = Stage(EVERBEAT, "safe", python=Path(sys.executable), url=url, directory=tmp_path)
    try:
        stage.open()
        stage.send(0, 8, 3.0)
        assert stage.until(lambda: stage.open_runs(VICTIM), seconds=30, every=0.02)
        now = time.monotonic_ns()
        stage.kill(VICTIM)
        states = watch(stage, AT_ONCE, Happened(at_ns=now))
    finally:
        stage.close()

    assert states == dict.fromkeys(range(8), "done")
    assert stage.accepted() == list(range(8))
    assert len({line.number for line in stage.ledger() if line.word == "end" and line.number < 8}) == 8


def test_only_processes_of_their_own_can_be_killed_alone() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "kill-child")
    tried = {system.name: [one for one in system.variants if fault.applies(system, one)] for system in SYSTEMS}

    assert tried["huey"] == ["safe"]
    assert tried["pgqueuer"] == []
