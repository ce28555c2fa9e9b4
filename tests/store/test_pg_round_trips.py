"""How often a flush waits for PostgreSQL, and that what it asks for in advance is never more than a guess."""

import select
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

import pytest
from psycopg.pq import Trace
from tests.flow_words import begin, graph
from tests.postgres import EmptyDatabase
from tests.words import a_room, a_task, completed, enqueue, failed, handed_back, register, retried, status_of

from everbeat.model.recovery import Verdict
from everbeat.model.task import Claim
from everbeat.store.messages import Ending, Flush, Flushed
from everbeat.store.postgres.bells import PAUSE
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.verbs import owning


@pytest.fixture
def store(a_database: EmptyDatabase) -> Iterator[PostgresStore]:
    """With the database's own clock."""
    store = PostgresStore(a_database.url(), patience=5.0)
    register(store, "w1")
    yield store
    store.close()


def turn(store: PostgresStore, ended: Sequence[Claim], places: int, *verdicts: Verdict) -> Flushed:
    """A flush without the bells after it, which ring when it is time for them. `verdicts`: in turn, if not results."""
    said = cycle(verdicts or [completed()])
    endings = [Ending(claim=one, verdict=next(said)) for one in ended]
    with store.database.write() as tx:
        return owning.flush(tx, Flush(worker_id="w1", endings=endings, room=a_room(places), seen_beat=0))


def round_trips(store: PostgresStore, file: Path, deed: Callable[[], object], *, with_bells: bool = False) -> int:
    """As the driver says: what it waits for is the answer to a Sync, or to a simple Query. Most bells ring later."""
    with file.open("w") as trace:
        with store.database.session() as connection:
            connection.pgconn.trace(trace.fileno())
            connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        deed()
        connection.pgconn.untrace()
    seen = file.read_text()
    assert not with_bells or "pg_notify" in seen
    seen = seen if with_bells else seen.partition("pg_notify")[0]
    sent = [line.split("\t") for line in seen.splitlines() if line.startswith("F\t")]
    return sum(words[2].strip() in ("Sync", "Query") for words in sent)


def test_a_flush_that_settles_and_claims_takes_two_round_trips(store: PostgresStore, tmp_path: Path) -> None:
    store.enqueue([a_task() for _ in range(9)])
    held = turn(store, turn(store, [], 3).claims, 3).claims

    found: list[Flushed] = []
    taken = round_trips(store, tmp_path / "trace", lambda: found.append(turn(store, held, 3)))

    assert (taken, len(found[0].claims)) == (2, 3)


def test_a_worker_that_was_idle_claims_what_comes_in_two_round_trips(store: PostgresStore, tmp_path: Path) -> None:
    """It looks for what it found the last time that there was anything."""
    enqueue(store)
    turn(store, turn(store, [], 3).claims, 3)
    assert turn(store, [], 3).claims == []
    task = enqueue(store)

    found: list[Flushed] = []
    taken = round_trips(store, tmp_path / "trace", lambda: found.append(turn(store, [], 3)))

    assert (taken, [one.id for one in found[0].claims]) == (2, [task])


def test_whoever_waits_for_a_result_is_told_with_the_commit(store: PostgresStore, tmp_path: Path) -> None:
    task = enqueue(store)
    (held,) = turn(store, [], 1).claims
    time.sleep(PAUSE)
    bell = store.bells.for_waiter(task)
    flush = Flush(worker_id="w1", endings=[Ending(claim=held, verdict=completed())], seen_beat=0)

    assert round_trips(store, tmp_path / "trace", lambda: store.flush(flush), with_bells=True) == 2
    assert select.select([bell], [], [], 5)[0]
    bell.close()


def test_a_flush_that_has_no_room_takes_two_round_trips(store: PostgresStore, tmp_path: Path) -> None:
    assert round_trips(store, tmp_path / "trace", lambda: turn(store, [], 0)) == 2


def test_a_flush_that_ends_a_node_and_starts_the_next_takes_three_round_trips(
    store: PostgresStore, tmp_path: Path
) -> None:
    """What is asked, what follows from it, the commit. The result that is an argument is at hand."""
    takes = {f"n{number}": {"args": b"[null]", "references": ((1, number - 1),)} for number in range(1, 5)}
    begin(store, graph(nodes=takes, n0="", **{f"n{number}": f"n{number - 1}" for number in range(1, 5)}))
    held = turn(store, turn(store, [], 2).claims, 2).claims

    found: list[Flushed] = []
    taken = round_trips(store, tmp_path / "trace", lambda: found.append(turn(store, held, 2)))

    assert (taken, [claim.id for claim in found[0].claims]) == (3, ["flow:n2"])
    assert found[0].claims[0].args == b"[3]"


def test_a_flush_that_ends_nodes_of_a_fan_and_starts_others_takes_two_round_trips(
    store: PostgresStore, tmp_path: Path
) -> None:
    """As one of plain tasks. What these took the others take, too."""
    names = [f"n{number:02}" for number in range(12)]
    takes = {name: {"args": b"[null]", "references": ((1, 0),)} for name in names}
    begin(store, graph(nodes=takes, a="", **dict.fromkeys(names, "a"), z=" ".join(names)))
    held = turn(store, turn(store, [], 2).claims, 4).claims

    found: list[Flushed] = []
    taken = round_trips(store, tmp_path / "trace", lambda: found.append(turn(store, held, 4)))

    assert (taken, [claim.id for claim in found[0].claims]) == (2, [f"flow:{name}" for name in names[4:8]])
    assert {claim.args for claim in found[0].claims} == {b"[3]"}


def test_what_a_node_makes_ready_is_claimed_though_others_were_looked_for_before(store: PostgresStore) -> None:
    """The last inputs of a join end together, and tasks that were ready before are many."""
    names = ["n0", "n1", "n2", "n3"]
    begin(store, graph(**dict.fromkeys(names, ""), z=" ".join(names)))
    held = turn(store, [], 4).claims
    store.enqueue([a_task() for _ in range(2)])

    assert "flow:z" in [claim.id for claim in turn(store, held, 8).claims]


@pytest.mark.parametrize("count", [3, 30])
def test_a_flush_of_tasks_that_fail_or_go_back_takes_four_round_trips_however_many_they_are(
    store: PostgresStore, tmp_path: Path, count: int
) -> None:
    """What is asked, how each of them stands, what becomes of it, the commit."""
    store.enqueue([a_task() for _ in range(count)])
    held = turn(store, [], count).claims

    taken = round_trips(store, tmp_path / "trace", lambda: turn(store, held, 0, failed(), retried(), handed_back()))

    assert taken == 4
    assert [status_of(store, claim.id).value for claim in held[:3]] == ["FAILED", "PENDING", "PENDING"]


def test_a_flush_takes_as_many_round_trips_for_thirty_tasks_that_were_taken_back_as_for_three(
    store: PostgresStore, tmp_path: Path
) -> None:
    """Whether they were recovered is asked of all of them together."""
    store.enqueue([a_task() for _ in range(33)])
    turn(store, turn(store, [], 33).claims, 0, handed_back())
    turn(store, turn(store, [], 33).claims, 0, handed_back())

    for_few = round_trips(store, tmp_path / "few", lambda: turn(store, [], 3))
    for_many = round_trips(store, tmp_path / "many", lambda: turn(store, [], 30))

    assert for_few == for_many


def test_what_becomes_due_after_a_flush_has_looked_is_claimed_by_it(store: PostgresStore) -> None:
    store.enqueue([a_task() for _ in range(2)])
    held = turn(store, [], 1).claims
    due = enqueue(store, priority=1, delay_us=1)

    claims = turn(store, held, 2).claims

    assert claims[0].id == due
    assert len(claims) == 2


def test_a_kind_that_nobody_foresaw_comes_in_its_turn(store: PostgresStore) -> None:
    store.enqueue([a_task() for _ in range(3)])
    held = turn(store, [], 1).claims
    urgent = enqueue(store, name="sub", priority=1)

    claims = turn(store, held, 2).claims

    assert claims[0].id == urgent
    assert [one.name for one in claims] == ["sub", "add"]


def test_a_kind_of_which_nothing_is_left_is_not_missed(store: PostgresStore) -> None:
    enqueue(store)
    held = turn(store, [], 2).claims
    other = enqueue(store, name="sub")

    assert [one.id for one in turn(store, held, 2).claims] == [other]
    assert turn(store, [], 2).claims == []
