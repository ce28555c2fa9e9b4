"""Workflows with something wrong in one of their rows: commands answer, workers work, recovery looks at all of them."""

import json
from contextlib import closing, suppress
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
from tests.hostile import flows
from tests.hostile.rows import Hand
from tests.hostile.workers import a_worker

from everbeat import Everbeat
from everbeat.cli.main import main
from everbeat.config import AppConfig
from everbeat.errors import EverbeatError
from everbeat.model.flow import WorkflowChange, WorkflowStatus
from everbeat.run.mending import mend_workflows
from everbeat.store.open import open_store

ASKED = (
    ["show"], ["show", "--json"], ["show", "--graph"], ["pause"], ["show", "--graph", "--json"], ["resume"],
    ["retry"], ["cancel"], ["show"],
)  # fmt: skip
OF_ALL = (
    ["workflow", "list"], ["workflow", "list", "--json", "--limit", "10000"], ["db", "check"],
    ["queue", "recover", "--dry-run"], ["queue", "recover", "--yes"], ["queue", "recover", "--json", "--yes"],
    ["queue", "recovery-report"], ["queue", "recovery-status"], ["metrics"], ["events", "--json"], ["task", "list"],
    ["worker", "health"],
)  # fmt: skip
SAMPLE = 40
CHANGES = (WorkflowChange.PAUSE, WorkflowChange.RESUME, WorkflowChange.RETRY, WorkflowChange.CANCEL)
LAST = "zzz-torn"
"""In the order of their ids, so all the others have been looked at before."""


def answered(words: list[str], url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*words, "--db", url])
    said = capsys.readouterr()
    assert code in (0, 1), f"{words} ended with {code}: {said.err}"
    assert "Traceback" not in said.err
    if "--json" in words and code == 0:
        assert json.loads(said.out) is not None


@pytest.mark.parametrize("table", flows.TABLES)
def test_no_command_about_a_workflow_that_makes_no_sense_fails_without_a_clear_word(
    hand: Hand, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt = flows.spread(hand, table, each=1)
    for workflow_id, (verb, *more) in zip(spoilt[:: len(spoilt) // SAMPLE or 1], cycle(ASKED), strict=False):
        answered(["workflow", verb, workflow_id, *more], hand.url, capsys)
    for words in OF_ALL:
        answered(words, hand.url, capsys)


@pytest.mark.parametrize("table", flows.TABLES)
def test_whatever_is_asked_of_a_workflow_that_makes_no_sense_is_done_or_refused(hand: Hand, table: str) -> None:
    spoilt = flows.spread(hand, table, each=2)
    with closing(open_store(AppConfig(broker=hand.broker))) as store:
        for workflow_id, change in zip(spoilt, cycle(CHANGES), strict=False):
            for deed in (
                partial(store.workflow, workflow_id),
                partial(store.workflow_nodes, workflow_id),
                partial(store.workflow_results, workflow_id, outputs_only=True),
                partial(store.change_workflow, change, workflow_id, actor="me"),
            ):
                with suppress(EverbeatError):
                    deed()


@pytest.mark.parametrize("table", flows.TABLES)
def test_recovery_looks_at_every_workflow_and_comes_to_an_end(hand: Hand, table: str) -> None:
    flows.spread(hand, table)
    _start_and_tear(hand)
    with closing(open_store(AppConfig(broker=hand.broker))) as store:
        first = mend_workflows(store, all_of_them=True)
        for _ in range(2):
            mend_workflows(store)
        again = mend_workflows(store)

        assert LAST in first.mended
        assert (again.mended, again.stuck) == ({}, {})


def test_the_result_of_a_node_that_makes_no_sense_is_no_argument_and_keeps_nobody_from_claiming(hand: Hand) -> None:
    with hand.writing() as pen:
        pen.write("UPDATE everbeat_workflow_tasks SET status = '-1' WHERE workflow_id = 'first-plain' AND node = 0")
    with closing(open_store(AppConfig(broker=hand.broker))) as store:
        claims = {claim.workflow_id: claim for claim in flows.claim_all(store, "w0")}

    assert claims["first-plain"].args == b""
    assert json.loads(claims["first-quorum"].args)


@pytest.mark.parametrize("table", flows.TABLES)
def test_a_worker_among_workflows_that_make_no_sense_ends_the_others(hand: Hand, tmp_path: Path, table: str) -> None:
    flows.spread(hand, table)
    with closing(Everbeat(AppConfig(broker=hand.broker))) as app, a_worker(hand, tmp_path / "log") as worker:
        tasks = flows.tasks_of(app)
        sound = [shape(tasks).start(app, id=f"sound-{shape.__name__}").id for shape in flows.SHAPES]
        _start_and_tear(hand)
        for one in [*sound, *(one for one in flows.IDS if one.startswith(("first", "second"))), LAST]:
            worker.until(partial(_has_completed, app, one), f"{one} has completed")
        worker.until_it_has_beaten(2)
    assert worker.process.returncode == 0, worker.said()
    assert "loop.failed" not in worker.said()


def _has_completed(app: Everbeat, workflow_id: str) -> bool:
    return app.workflow_handle(workflow_id).status() is WorkflowStatus.COMPLETED


def _start_and_tear(hand: Hand) -> None:
    """A workflow that goes on only when recovery has counted its nodes again."""
    with closing(Everbeat(AppConfig(broker=hand.broker))) as app:
        flows.plain(flows.tasks_of(app)).start(app, id=LAST)
    with hand.writing() as pen:
        pen.write(f"UPDATE everbeat_workflow_tasks SET deps_left = 7 WHERE workflow_id = '{LAST}' AND node = 1")
