"""Who lets torn workflows go on: a start, and the reaper of a worker that runs."""

from typing import Any

import pytest
from tests.flow_words import begin, graph, state
from tests.run.stage import Stage
from tests.run.test_reaper import QUICK, live
from tests.run.test_startup import a_startup

from everbeat.model.flow import WorkflowStatus

TEAR = "UPDATE everbeat_tasks SET status = 'FAILED', finished_at = 1 WHERE id LIKE '%:a'"
POISON = "UPDATE everbeat_workflow_tasks SET condition = 'no json' WHERE workflow_id = 'bad' AND name = 'b'"


@pytest.fixture
def torn(stage: Stage) -> Any:
    store: Any = stage.store
    for name in ("bad", "good"):
        begin(store, graph(name, a="", b="a"))
    with store.database.write() as tx:
        tx.run(TEAR)
        tx.run(POISON)
    return store


def test_a_start_mends_what_is_torn_and_reports_what_it_could_not_mend(stage: Stage, torn: Any) -> None:
    starter = stage.worker("starter")
    report = a_startup(stage, starter).run()

    assert state(torn, "good") is WorkflowStatus.FAILED
    assert [(one.workflow_id, one.success) for one in report.torn_workflows] == [("good", True), ("bad", False)]
    assert a_startup(stage, starter).run().torn_workflows == []
    assert "a condition is not understood: no json" in torn.workflow("bad").stuck


def test_what_was_set_aside_is_tried_again_when_a_person_asks_for_a_recovery(stage: Stage, torn: Any) -> None:
    starter = stage.worker("starter")
    a_startup(stage, starter).run()
    with torn.database.write() as tx:
        tx.run("UPDATE everbeat_workflow_tasks SET condition = NULL")
    a_startup(stage, starter).run()
    assert state(torn, "bad") is WorkflowStatus.RUNNING

    report = a_startup(stage, starter, is_asked_for=True).run()

    assert [(one.workflow_id, one.success) for one in report.torn_workflows] == [("bad", True)]
    assert state(torn, "bad") is WorkflowStatus.FAILED


def test_the_reaper_mends_what_is_torn(stage: Stage, torn: Any) -> None:
    live(stage, 10, stage.worker("judge", **QUICK))

    assert state(torn, "good") is WorkflowStatus.FAILED
    info = torn.workflow("bad")
    assert (info.status, bool(info.stuck)) == (WorkflowStatus.RUNNING, True)
