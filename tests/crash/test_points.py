"""kill -9 at every named point: whoever comes next brings everything to an end."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.crash.conftest import MakeYard, both_stores
from tests.crash.yard import FAST, SOURCES, Yard

from everbeat import TaskStatus
from everbeat.model.worker import WorkerStatus
from everbeat.testing import POINTS

SENDING = [point for point in POINTS if point.startswith("enqueue.")]
MIGRATING = [point for point in POINTS if point.startswith("migrate.")]
IN_WORKFLOWS = ("advance.", "change_workflow.", "mend.")
"""Passed when a node ends, and by who changes or mends a workflow: see test_flows.py and test_flow_changes.py."""
RECOVERING = ("declare_dead.", "recover.")
"""Passed by whoever finds what a dead worker left."""
BY_COMMAND = {
    "backup.": ["db", "backup", "copy.db"],
    "restore.": ["db", "restore", "earlier.db", "--yes"],
    "checkpoint.": ["db", "checkpoint"],
}
"""Passed by commands of a person. A checkpoint is made by a worker that starts, too."""
RETIRING = ("retire.",)
"""Passed at the end of a burst."""
ELSEWHERE = (*SENDING, *MIGRATING, *IN_WORKFLOWS, "backup.", "restore.")
REPEATED = ("flush.before_commit", "claim.after_commit", "start.sent", "finish.received", "beat.after_commit")


def points_in(directory: Path) -> Iterator[str]:
    """Arguments of crash_point(), and of a database's write(), which passes two of its own."""
    for path in sorted(directory.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called == "crash_point":
                    yield node.args[0].value
                elif called == "write" and ast.unparse(node.func).endswith("database.write"):
                    yield f"{node.args[0].value}.before_commit"
                    yield f"{node.args[0].value}.after_commit"


def crashes() -> Iterator[tuple[str, str]]:
    in_a_file = set(points_in(SOURCES / "everbeat/store/sqlite")) - set(points_in(SOURCES / "everbeat/store/postgres"))
    for point in POINTS:
        if not point.startswith(ELSEWHERE):
            yield "sqlite", point
            if point not in in_a_file:
                yield "postgres", point
    for point in REPEATED:
        yield "sqlite", f"{point}:3"


@pytest.mark.parametrize(("store_url", "crash_at"), list(crashes()), indirect=["store_url"])
def test_a_worker_killed_at_any_point_leaves_nothing_lost_stuck_or_run_twice(
    make_yard: MakeYard, crash_at: str
) -> None:
    yard = make_yard(**FAST)
    ids = flow(yard)
    if crash_at.startswith(RECOVERING):
        ids += leave_orphans(yard)

    doomed = yard.worker(*(["--burst"] if crash_at.startswith(RETIRING) else []), crash_at=crash_at, ready=False)
    assert doomed.ended() == -9, doomed.said()
    heir = yard.worker()
    yard.until_ended(ids)

    yard.audit(ids)
    assert [worker.id for worker in yard.store.workers() if worker.status is WorkerStatus.ALIVE] == [heir.id]
    for orphaned in ids:
        assert yard.task(orphaned).crash_count == (yard.task(orphaned).name == "a_dies_once")
    assert heir.stop() == 0


@both_stores
@pytest.mark.parametrize("crash_at", SENDING)
def test_a_sender_killed_while_sending_has_sent_all_of_a_task_or_nothing(yard: Yard, crash_at: str) -> None:
    sender = yard.producer("--crash-at", f"{crash_at}:2", "5", "quick")
    assert sender.ended() == -9, sender.said()

    yard.worker("--burst").ended()

    told = sender.said().split()
    stored = [task.id for task in yard.tasks()]
    assert len(told) == 2
    assert set(told) <= set(stored)
    assert len(stored) == (2 if crash_at == "enqueue.before_commit" else 3)
    yard.audit(stored)
    assert {yard.status(task_id) for task_id in stored} == {TaskStatus.COMPLETED}


@both_stores
@pytest.mark.parametrize("crash_at", MIGRATING)
def test_a_migration_killed_at_any_point_is_made_whole_by_the_next(yard: Yard, crash_at: str) -> None:
    if yard.url is not None:
        with psycopg.connect(yard.url) as server:
            server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    words = ["db", "migrate", "--db", yard.url or f"sqlite:///{yard.path}/yard.db"]
    doomed = yard.command(*words, crash_at=crash_at)
    assert doomed.ended() == -9, doomed.said()

    again = yard.command(*words)

    assert again.ended() == 0, again.said()
    assert ("already" in again.said()) is (crash_at == "migrate.after_commit")
    ids = flow(yard)
    yard.worker("--burst").ended()
    yard.until_ended(ids)
    yard.audit(ids)


@pytest.mark.parametrize("crash_at", [point for point in POINTS if point.startswith(tuple(BY_COMMAND))])
def test_a_command_killed_at_any_point_can_be_repeated_and_has_harmed_nothing(yard: Yard, crash_at: str) -> None:
    words = next(words for start, words in BY_COMMAND.items() if crash_at.startswith(start))
    url = f"sqlite:///{yard.path}/yard.db"
    ids = flow(yard)
    assert yard.command("db", "backup", "earlier.db", "--db", url).ended() == 0

    doomed = yard.command(*words, "--db", url, crash_at=crash_at)
    assert doomed.ended() == -9, doomed.said()
    copies = list(yard.path.glob("copy.db"))
    for part in yard.path.glob(".*.part"):
        os.utime(part, (0, 0))  # one that was made in this second may be somebody's
    again = yard.command(*words, "--db", url)

    assert again.ended() == (1 if copies else 0), again.said()  # a backup has its name only when it is finished
    assert bool(copies) is (crash_at == "backup.named")
    assert copies or list(yard.path.glob(".*.part")) == []
    for path in copies:
        assert yard.command("db", "check", "--db", f"sqlite:///{path}").ended() == 0
    yard.worker("--burst").ended()
    yard.until_ended(ids)
    yard.audit(ids)


def test_the_points_that_can_be_armed_are_those_in_the_code() -> None:
    assert sorted(POINTS) == sorted(set(points_in(SOURCES / "everbeat")))


def flow(yard: Yard) -> list[str]:
    """Tasks of every kind: once or again, in a process slot, in the async process, alone."""
    ids = [yard.send("a_dies_once")]
    for _ in range(3):
        ids += [yard.send(name) for name in ("quick", "quick_again", "a_quick", "a_quick_again")]
    return ids


def leave_orphans(yard: Yard) -> list[str]:
    ids = [yard.send("gated_again", "later", priority=1), yard.send("gated_then_patient", "later", priority=1)]
    worker = yard.worker()
    for task_id in ids:
        yard.until_started(task_id)
    worker.kill()
    yard.open("later")
    return ids
