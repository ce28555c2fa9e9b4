"""Orders about tasks, given to the real command: who gave them, whom they fit, and what is asked before."""

import os
import pwd
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from tests.cli.by_hand import Command, HandWorker, failed_task, send

from everbeat.cli.orders import _told_if_cut_short
from everbeat.errors import StoreUnavailable
from everbeat.model.order import Order
from everbeat.model.state import TaskStatus
from everbeat.model.task import TaskInfo
from everbeat.store.interface import Store

ME = f"cli/{pwd.getpwuid(os.getuid()).pw_name}"


def found(store: Store, task_id: str) -> TaskInfo:
    task = store.get(task_id)
    assert task is not None
    return task


def quarantined(store: Store, hand: HandWorker) -> str:
    task_id = send(store, name="shop.segfault")
    hand.quarantine(hand.claim("shop.segfault"))
    return task_id


@pytest.mark.parametrize(
    ("order", "key", "status", "change"),
    [
        ("cancel", "cancelled", "CANCELLED", "cancel"),
        ("fail", "failed", "FAILED", "give_up"),
    ],
)
def test_an_order_is_in_the_history_with_the_user_and_the_reason(
    process: Command, store: Store, url: str, order: str, key: str, status: str, change: str
) -> None:
    task_id = send(store)

    ended = process("task", order, task_id, "--reason", "wrong month", "--json", "--db", url)

    assert ended.json == {"dry_run": False, "count": 1, key: [task_id], "refused": []}
    (entry,) = process("task", "history", task_id, "--json", "--db", url).json["history"]
    assert (entry["actor"], entry["change"], entry["new_status"]) == (ME, change, status)
    assert entry["reason"] == "wrong month"
    assert "wrong month" in process("task", "history", task_id, "--db", url).out


def test_cancel_of_a_running_task_says_that_it_was_told_to_stop(
    process: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = send(store)
    hand.claim()

    ended = process("task", "cancel", task_id, "--db", url)

    assert (ended.code, ended.out) == (0, "1 task cancelled\n")
    assert f"task {task_id}: its run on hand was told to stop; it is CANCELLED when that is done" in ended.err
    assert found(store, task_id).status is TaskStatus.RUNNING


def test_requeue_takes_a_task_from_a_living_owner_and_says_that_it_still_runs(
    process: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = send(store)
    claim = hand.claim()

    ended = process("task", "requeue", task_id, "--db", url)
    hand.complete(claim)

    assert (ended.code, ended.out) == (0, "1 task queued again\n")
    assert f"task {task_id}: its run on hand is told to stop; if it has a result, that is refused" in ended.err
    assert found(store, task_id).status is TaskStatus.PENDING
    shown = process("task", "show", task_id, "--json", "--db", url).json
    assert [late["has_result"] for late in shown["late_outcomes"]] == [True]


def test_a_run_under_an_exclusive_key_is_taken_by_force_only(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = send(store, exclusive_key="db:prod")
    hand.claim()

    refused = everbeat("task", "requeue", task_id, "--db", url)
    by_filter = everbeat("task", "requeue", "--name", "shop.add", "--yes", "--json", "--db", url)
    forced = everbeat("task", "requeue", task_id, "--force", "--db", url)

    assert (refused.code, by_filter.json["requeued"]) == (1, [])
    assert "runs under an exclusive key on hand" in refused.err
    assert forced.code == 0
    assert found(store, task_id).status is TaskStatus.PENDING
    assert everbeat("task", "cancel", task_id, "--force", "--db", url).code == 2


def test_a_late_result_is_accepted_once(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    task_id = send(store)
    claim = hand.claim()
    everbeat("task", "fail", task_id, "--db", url)
    hand.complete(claim)

    accepted = everbeat("task", "accept", task_id, "--json", "--db", url)
    again = everbeat("task", "accept", task_id, "--db", url)

    assert (accepted.code, accepted.json) == (0, {"id": task_id, "status": "COMPLETED"})
    assert found(store, task_id).history[-1].actor == ME
    assert (again.code, again.out) == (1, "")
    assert f"task {task_id} is COMPLETED" in again.err


def test_accept_says_why_it_can_not(everbeat: Command, store: Store, url: str) -> None:
    task_id = send(store)

    assert "has no result that came too late" in everbeat("task", "accept", task_id, "--db", url).err
    assert "no task nobody" in everbeat("task", "accept", "nobody", "--db", url).err
    assert everbeat("task", "accept", "nobody", "--db", url).code == 1


def test_an_erased_task_shows_nothing_and_can_not_run_again(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    task_id = send(store)
    hand.fail(hand.claim(), "Ada's card was refused")

    erased = everbeat("task", "erase", task_id, "--db", url)
    retried = everbeat("task", "retry", task_id, "--db", url)

    assert (erased.code, erased.out) == (0, "1 task erased\n")
    shown = everbeat("task", "show", task_id, "--json", "--db", url).json
    assert (shown["error_message"], shown["attempts"][0]["error_message"]) == (None, None)
    assert retried.code == 1
    assert f"task {task_id} was erased" in retried.err


def test_purge_removes_what_ended_long_enough_ago(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    failed, waiting = failed_task(store, hand), send(store)

    kept = everbeat("task", "purge", "--older-than", "1h", "--yes", "--db", url)
    cut = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    gone = everbeat("task", "purge", "--older-than", cut, "--yes", "--json", "--db", url)

    assert kept.out == "0 tasks removed\n"
    assert gone.json["purged"] == [failed]
    assert [task["id"] for task in everbeat("task", "list", "--json", "--db", url).json] == [waiting]


@pytest.mark.parametrize("order", ["retry", "cancel", "purge", "requeue", "fail", "erase"])
def test_ids_that_do_not_fit_are_named_and_exit_1(everbeat: Command, store: Store, url: str, order: str) -> None:
    ended = everbeat("task", order, "nobody", "--db", url)

    assert ended.code == 1
    assert "no task nobody" in ended.err


@pytest.mark.parametrize(
    ("order", "unfit"), [("cancel", "FAILED"), ("purge", "RUNNING"), ("requeue", "PENDING"), ("erase", "PENDING")]
)
def test_a_status_that_does_not_fit_is_a_usage_error(
    everbeat: Command, store: Store, url: str, order: str, unfit: str
) -> None:
    ended = everbeat("task", order, "--status", unfit, "--yes", "--db", url)

    assert ended.code == 2
    assert f"{unfit} can not be" in ended.err


@pytest.mark.parametrize("group", [("task", "cancel"), ("quarantine", "release")], ids=" ".join)
def test_an_order_needs_ids_or_filters_and_never_means_everything(
    everbeat: Command, store: Store, url: str, group: tuple[str, str]
) -> None:
    assert everbeat(*group, "--yes", "--db", url).code == 2
    assert everbeat(*group, "an-id", "--queue", "mail", "--yes", "--db", url).code == 2


def test_a_filter_asks_before_and_does_nothing_without_an_answer(process: Command, store: Store, url: str) -> None:
    task_id = send(store, queue="mail")

    refused = process("task", "cancel", "--queue", "mail", "--db", url)
    looked = process("task", "cancel", "--queue", "mail", "--dry-run", "--db", url)

    assert (refused.code, refused.out) == (2, "")
    assert "1 task would be cancelled; add --yes to do it, --dry-run to look" in refused.err
    assert (looked.code, looked.out) == (0, "1 task would be cancelled\n")
    assert found(store, task_id).status is TaskStatus.PENDING


def test_more_ids_than_a_statement_can_name_are_all_changed(everbeat: Command, store: Store, url: str) -> None:
    sent = [send(store) for _ in range(501)]

    ended = everbeat("task", "cancel", *sent, "--json", "--db", url)

    assert ended.json["count"] == 501


def test_an_order_that_is_cut_short_says_what_was_done_and_that_only_the_last_step_changed_nothing(
    everbeat: Command, store: Store, url: str
) -> None:
    first, *_, last = (send(store) for _ in range(501))
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as hand:
        hand.execute(f"CREATE TRIGGER stop BEFORE UPDATE ON everbeat_tasks WHEN new.id = '{last}' "
                     f"BEGIN SELECT json('broken'); END")  # fmt: skip

    ended = everbeat("task", "cancel", "--name", "shop.add", "--yes", "--db", url)

    assert (ended.code, ended.out) == (3, "")
    assert "cut short: 500 tasks cancelled, the others are as they were" in ended.err
    assert "malformed JSON. Nothing was changed by this step." in ended.err
    assert (found(store, first).status, found(store, last).status) == ("CANCELLED", "PENDING")


@pytest.mark.parametrize("error", [StoreUnavailable("lost while committing", maybe_stored=True), KeyboardInterrupt()])
def test_an_order_whose_last_commit_is_in_doubt_does_not_say_that_it_changed_nothing(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)), _told_if_cut_short(Order.CANCEL, ["one"], dry_run=False):
        raise error

    assert "cut short: 1 task cancelled, perhaps those of the next batch, and no others" in capsys.readouterr().err


def test_a_retry_by_filter_leaves_the_quarantine_alone(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    poison, plain = quarantined(store, hand), failed_task(store, hand)

    ended = everbeat("task", "retry", "--status", "FAILED", "--yes", "--json", "--db", url)

    assert ended.json["retried"] == [plain]
    assert found(store, poison).quarantined
    assert everbeat("task", "retry", poison, "--db", url).code == 0  # by its id it is meant


def test_the_quarantine_is_released_and_discarded_by_id(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    released, discarded, plain = quarantined(store, hand), quarantined(store, hand), failed_task(store, hand)

    freed = everbeat("quarantine", "release", released, plain, "--db", url)
    dropped = everbeat("quarantine", "discard", discarded, "--db", url)

    assert (freed.code, freed.out) == (1, "1 task released, and will run again\n")
    assert f"task {plain} is not in quarantine" in freed.err
    assert dropped.code == 0
    assert found(store, released).status is TaskStatus.PENDING
    assert (found(store, discarded).status, found(store, discarded).quarantined) == (TaskStatus.FAILED, False)
    assert everbeat("quarantine", "list", "--json", "--db", url).json == []
