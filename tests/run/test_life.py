"""The beginning and the end of a life, as others see it in the store and on the disk."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.words import a_room, enqueue

from everbeat import Everbeat, SQLiteConfig
from everbeat.clock import SystemClock
from everbeat.model.worker import WorkerStatus
from everbeat.report.log import Reporter
from everbeat.run.crew import Crew
from everbeat.run.life import Life
from everbeat.run.lockfile import this_host
from everbeat.run.news import AppFacts
from everbeat.run.options import WorkerOptions
from everbeat.run.outfit import Outfit, Surroundings
from everbeat.run.profile import Profile
from everbeat.run.recovery import Recovery
from everbeat.store.interface import Store
from everbeat.store.messages import Flush


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Everbeat]:
    app = Everbeat(SQLiteConfig(tmp_path / "life.db"))
    app.task(name="add")(lambda a, b: a + b)
    yield app
    app.close()


def a_life(app: Everbeat, stack: ExitStack) -> Life:
    """Before it enters the store. Its fork server was not started."""
    facts = AppFacts(
        store_url="", config_json=json.dumps(app.worker_facts()), sync_names=("add",), async_names=(), fork_reason=None
    )
    crew = Crew(target="nothing:app", imports=())
    stack.callback(crew.stop)
    profile = Profile(WorkerOptions(target="nothing:app", processes=1), facts)
    around = Surroundings(crew, SystemClock(), Reporter())
    return Life(Outfit(profile, around, stack, creates_store=True, store_id=None))


def files_in(store: Store) -> list[str]:
    return sorted(path.suffix for path in store.state_directory.glob("worker-*"))


def test_a_worker_that_never_came_to_work_after_it_was_entered_does_not_look_alive(app: Everbeat) -> None:
    with ExitStack() as stack:
        a_life(app, stack).register()
        assert [worker.status for worker in app.store.workers()] == [WorkerStatus.ALIVE]

    assert [worker.status for worker in app.store.workers()] == [WorkerStatus.STOPPED]
    assert files_in(app.store) == []


def test_a_worker_that_says_goodbye_while_tasks_are_still_its_own_leaves_its_journal(app: Everbeat) -> None:
    """A drain that was given up because the store was away, and the store is back for the goodbye: without the journal
    a task whose code never began would count as lost."""
    with ExitStack() as stack:
        life = a_life(app, stack)
        life.register()
        task = enqueue(app.store)
        life.store.flush(Flush(worker_id=life.profile.worker_id, room=a_room()))
        life.dispatcher.turns = 1

        life.end(fenced=False, patience=0.0)

    assert files_in(app.store) == [".journal", ".lock"]
    config = life.profile.config.recovery
    Recovery(app.store, config, this_host()).run(actor="test")
    info = app.store.get(task)
    assert info is not None
    assert (info.status, info.lost_count, info.attempts) == ("PENDING", 0, [])
    assert files_in(app.store) == []
