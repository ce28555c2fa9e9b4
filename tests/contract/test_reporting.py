"""What a running task says of itself: kept with it, under its fence, for as long as that run counts."""

from tests.words import claim_one, completed, enqueue, facts_of, requeue, retried, settle

from everbeat.model.task import Claim
from everbeat.store.interface import Store
from everbeat.store.messages import Ending, Flush, Report

HALF = '{"done":1,"total":2,"note":null}'


def say(store: Store, taken: Claim, progress: str | None) -> None:
    report = Report(claim=taken, pid=99, progress=progress)
    store.flush(Flush(worker_id=taken.worker_id or "", reports=[report]))


def test_progress_is_shown_and_stays_when_the_task_ends(store: Store) -> None:
    task_id = enqueue(store)
    taken = claim_one(store)

    say(store, taken, HALF)
    settle(store, taken, completed())

    assert facts_of(store, task_id, "status", "progress") == ("COMPLETED", {"done": 1, "total": 2, "note": None})


def test_progress_and_end_in_one_flush_are_both_kept(store: Store) -> None:
    task_id = enqueue(store)
    taken = claim_one(store)

    store.flush(
        Flush(
            worker_id="w1",
            endings=[Ending(claim=taken, verdict=completed())],
            reports=[Report(claim=taken, pid=99, progress=HALF)],
        )
    )

    assert facts_of(store, task_id, "status", "progress") == ("COMPLETED", {"done": 1, "total": 2, "note": None})


def test_a_superseded_run_says_nothing_any_more(store: Store) -> None:
    task_id = enqueue(store)
    late = claim_one(store, "slow")
    requeue(store, late)
    claim_one(store, "fast")

    say(store, late, HALF)

    assert facts_of(store, task_id, "progress") == (None,)


def test_the_next_run_does_not_begin_with_the_words_of_the_last(store: Store) -> None:
    task_id = enqueue(store, max_attempts=3)
    taken = claim_one(store)
    say(store, taken, HALF)

    settle(store, taken, retried())

    assert facts_of(store, task_id, "status", "progress") == ("PENDING", None)
