"""The lock that a worker holds with its session, on a real server: seen by others, lost, and taken again."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest
from tests.postgres import Cluster, EmptyDatabase
from tests.words import (
    a_policy,
    a_task,
    claim,
    claim_one,
    completed,
    enqueue,
    ids,
    register,
    settle,
    status_of,
    succeeded,
)

from everbeat.cli.main import main
from everbeat.config import RecoveryConfig
from everbeat.decide.suspect import Watch
from everbeat.errors import StoreUnavailable
from everbeat.model.recovery import Cause, Orphan, Settled, Verdict
from everbeat.model.session import Look, Suspect
from everbeat.model.state import Change, TaskStatus
from everbeat.model.task import Claim
from everbeat.model.worker import Host
from everbeat.run.findings import Findings
from everbeat.run.recovery import Recovery
from everbeat.store.interface import Session
from everbeat.store.postgres.lease import LONGEST_NAME, name_of
from everbeat.store.postgres.store import PostgresStore

Hold = Callable[[str], Session]
PID_OF = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
AGAIN = Verdict(change=Change.RECOVER, reason="its session is gone")


@pytest.fixture
def store(a_database: EmptyDatabase) -> Iterator[PostgresStore]:
    with closing(PostgresStore(a_database.url(), patience=2.0)) as store:
        yield store


@pytest.fixture
def hold(store: PostgresStore) -> Iterator[Hold]:
    """Registers a worker that holds a session."""
    with ExitStack() as stack:

        def hold(worker_id: str) -> Session:
            if not any(worker.id == worker_id for worker in store.workers()):
                register(store, worker_id)
            session = store.hold_session(worker_id)
            assert session is not None
            stack.callback(session.close)
            return session

        yield hold


def end_session(store: PostgresStore, worker_id: str) -> None:
    """As an operator would, and wait until it has ended."""
    with store.database.session() as connection:
        (pid,) = connection.execute(PID_OF, (name_of(worker_id),)).fetchone() or (0,)
        assert connection.execute("SELECT pg_terminate_backend(%s::int, 10000)", (pid,)).fetchone() == (True,)


def holders(look: Look) -> set[str]:
    return {peer.worker_id for peer in look.peers if peer.holds}


def connected(look: Look) -> set[str]:
    return {peer.worker_id for peer in look.peers if peer.is_connected}


def a_suspect(worker_id: str = "b", beat_seq: int = 0) -> Suspect:
    return Suspect(worker_id=worker_id, beat_seq=beat_seq, missing_us=3_000_000)


def orphaned(*claims: Claim) -> list[tuple[Orphan, Verdict]]:
    return [(Orphan(claim=one, cause=Cause.LOST, evidence="lost"), AGAIN) for one in claims]


def test_who_holds_a_session_is_seen_by_the_others(store: PostgresStore, hold: Hold) -> None:
    judge = hold("a")
    hold("b")
    register(store, "c")

    assert holders(judge.look()) == connected(judge.look()) == {"a", "b"}
    assert {peer.worker_id for peer in judge.look().peers} == {"a", "b", "c"}
    assert store.session_holders() == {"a", "b"}


def test_a_session_that_was_ended_is_missed_by_the_others_and_by_its_worker(store: PostgresStore, hold: Hold) -> None:
    judge, lost = hold("a"), hold("b")

    end_session(store, "b")

    assert holders(judge.look()) == connected(judge.look()) == {"a"}
    with pytest.raises(StoreUnavailable):
        lost.look()


def test_a_worker_takes_its_lock_again_with_a_new_session(store: PostgresStore, hold: Hold) -> None:
    judge, lost = hold("a"), hold("b")
    end_session(store, "b")
    lost.close()

    hold("b")

    assert holders(judge.look()) == {"a", "b"}


def test_a_worker_that_returns_waits_until_the_server_has_missed_its_earlier_session(
    store: PostgresStore, hold: Hold
) -> None:
    judge, earlier = hold("a"), hold("b")
    returned: list[Session] = []
    returning = threading.Thread(target=lambda: returned.append(hold("b")))
    returning.start()
    while connected(judge.look()) != {"a", "b"}:
        continue

    earlier.close()
    returning.join(10)

    assert returned
    assert holders(judge.look()) == {"a", "b"}


@pytest.mark.parametrize("worker_id", ["w" * 200 + "-1f", "Grüße an ☃-22", "with 'quotes' \"and\" %s-33"])
def test_any_id_of_a_worker_can_be_the_name_of_a_session(hold: Hold, worker_id: str) -> None:
    judge = hold("a")
    hold(worker_id)

    assert holders(judge.look()) == connected(judge.look()) == {"a", worker_id}
    assert len(name_of(worker_id)) <= LONGEST_NAME


def test_two_stores_in_one_database_do_not_share_the_locks_of_equal_ids(a_database: EmptyDatabase) -> None:
    url = a_database.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA one; CREATE SCHEMA two")
    with ExitStack() as stack:
        first, second = (stack.enter_context(closing(PostgresStore(url, schema=name))) for name in ("one", "two"))
        for store in (first, second):
            register(store, "b")
        judge = first.hold_session("a")
        other = second.hold_session("b")
        assert judge is not None
        assert other is not None
        stack.callback(judge.close)
        stack.callback(other.close)

        assert holders(judge.look()) == set()


# -- taking tasks from a suspect --------------------------------------------------------------------------------------


def test_a_suspects_task_is_taken_and_its_worker_is_left_alive(store: PostgresStore) -> None:
    enqueue(store, id="t")
    taken = claim_one(store, "b")

    assert store.recover_suspected(a_suspect(), orphaned(taken)) == [Settled(task_id="t")]

    assert status_of(store, "t") is TaskStatus.PENDING
    assert [worker.id for worker in store.workers(alive_only=True)] == ["b"]
    assert store.ours("b").alive
    assert store.ours("b").owned == {}


def test_nothing_is_taken_from_a_worker_that_holds_its_lock_again(store: PostgresStore, hold: Hold) -> None:
    hold("b")
    enqueue(store, id="t")
    taken = claim_one(store, "b")

    assert store.recover_suspected(a_suspect(), orphaned(taken)) is None

    assert status_of(store, "t") is TaskStatus.RUNNING


def test_nothing_is_taken_from_a_worker_that_has_beaten_since(store: PostgresStore) -> None:
    enqueue(store, id="t")
    taken = claim_one(store, "b")
    assert store.renew("b", [], 0)

    assert store.recover_suspected(a_suspect(beat_seq=0), orphaned(taken)) is None
    assert status_of(store, "t") is TaskStatus.RUNNING
    assert store.recover_suspected(a_suspect(beat_seq=1), orphaned(taken)) is not None


def test_nothing_is_taken_from_one_that_somebody_else_has_declared_dead(store: PostgresStore) -> None:
    enqueue(store, id="t")
    taken = claim_one(store, "b")
    store.declare_dead("b", reason="gone", cause="proof")

    assert store.recover_suspected(a_suspect(), orphaned(taken)) is None


def test_of_a_suspects_tasks_only_those_that_may_run_again_are_taken(store: PostgresStore) -> None:
    enqueue(store, id="once")
    enqueue(store, id="again", max_attempts=3, policy=a_policy(max_attempts=3, has_retry=True))
    register(store, "b")
    claim(store, "b", places=2)
    (worker,) = store.workers()
    elsewhere = Host(name="host-2", boot_id="another", pid=1, pid_started=1, pid_namespace=1)

    Recovery(store, RecoveryConfig(), elsewhere).take_from(worker, a_suspect(), Findings())

    assert status_of(store, "once") is TaskStatus.RUNNING
    assert status_of(store, "again") is TaskStatus.PENDING


def test_two_judges_take_each_task_once(store: PostgresStore) -> None:
    store.enqueue([a_task(id=f"t{number}", policy=a_policy(max_attempts=5)) for number in range(20)])
    register(store, "b")
    taken = claim(store, "b", places=20)
    told: list[object] = []

    def take() -> None:
        told.append(store.recover_suspected(a_suspect(), orphaned(*taken)))

    judges = [threading.Thread(target=take) for _ in range(4)]
    for judge in judges:
        judge.start()
    for judge in judges:
        judge.join(20)

    settled = [one for settlements in told if isinstance(settlements, list) for one in settlements]
    assert sorted(one.task_id for one in settled if isinstance(one, Settled)) == sorted(ids(taken))
    assert {one.fence for one in claim(store, "b", places=20)} == {taken[0].fence + 2}


def test_who_was_taken_from_can_still_bring_the_result_that_nobody_else_has_begun_to_make(store: PostgresStore) -> None:
    """Its late outcome is adopted (PROTOCOL 29)."""
    enqueue(store, id="t")
    taken = claim_one(store, "b")
    store.recover_suspected(a_suspect(), orphaned(taken))

    settle(store, taken, completed(b"7"), outcome=succeeded(b"7"))

    assert status_of(store, "t") is TaskStatus.COMPLETED


# -- the server itself ------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.remove()


def test_when_one_backend_is_killed_all_sessions_are_lost_and_nobody_is_suspected(cluster: Cluster) -> None:
    """The server ends all of them, and its start time stays as it was."""
    with ExitStack() as stack:
        store = stack.enter_context(closing(PostgresStore(cluster.new_database(), patience=2.0)))

        def hold(worker_id: str) -> Session:
            session = store.hold_session(worker_id)
            assert session is not None
            stack.callback(session.close)
            return session

        for worker_id in "abcd":
            register(store, worker_id)
        judge, *others = [hold(worker_id) for worker_id in "abcd"]
        assert holders(judge.look()) == set("abcd")
        with store.database.session() as connection:
            (pid,) = connection.execute(PID_OF, (name_of("d"),)).fetchone() or (0,)
        os.kill(pid, signal.SIGKILL)
        for session in (judge, *others):
            with pytest.raises(StoreUnavailable):
                until_lost(session)
        judge = until_held(lambda: hold("a"))

        watch = Watch().after(judge.look())
        seen_again = watch.after(judge.look())

        assert seen_again.missing == {}
        assert seen_again.suspects(0) == []


def until_lost(session: Session) -> None:
    """The server takes a moment to end it."""
    for _ in range(10_000):
        session.look()


def until_held(hold: Callable[[], Session]) -> Session:
    """The server takes a moment to return."""
    for _ in range(1_000):
        try:
            return hold()
        except StoreUnavailable:
            threading.Event().wait(0.02)
    raise AssertionError("the server has not returned")


# -- for people -------------------------------------------------------------------------------------------------------


def test_the_list_of_workers_says_who_holds_a_session(
    store: PostgresStore, hold: Hold, capsys: pytest.CaptureFixture[str]
) -> None:
    hold("a")
    register(store, "b")

    assert main(("worker", "list", "--json", "--db", store.database.location)) == 0
    listed = json.loads(capsys.readouterr().out)
    assert main(("worker", "list", "--show-heartbeat", "--db", store.database.location)) == 0

    assert {worker["id"]: worker["has_session"] for worker in listed} == {"a": True, "b": False}
    assert "SESSION" in capsys.readouterr().out
