"""Events: told after the commit, kept for those who subscribed, given up after ten failures (PROTOCOL 33)."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.words import (
    SECOND,
    VirtualClock,
    a_room,
    abandoned,
    claim_one,
    completed,
    enqueue,
    recover,
    register,
    requeue,
    settle,
    succeeded,
)

from everbeat.model.event import EVENT_UNDELIVERABLE, WORKER_DEAD, WORKER_STARTED, Event, EventInfo
from everbeat.model.recovery import Verdict
from everbeat.model.retention import Cut, Kept
from everbeat.model.state import Change
from everbeat.store.interface import Store
from everbeat.store.messages import Flush

LEASE = 30 * SECOND
HOUR = 3_600 * SECOND


def take(store: Store, *names: str, app: str = "shop:app", by: str = "w0") -> list[EventInfo]:
    return store.take_events(app, names or ("*",), worker_id=by, limit=10, lease_us=LEASE)


def taken(store: Store, *names: str, app: str = "shop:app", by: str = "w0") -> list[int]:
    return [event.id for event in take(store, *names, app=app, by=by)]


def totals(store: Any) -> dict[tuple[str, str], float]:
    with store.database.read() as tx:
        rows = tx.all("SELECT name, labels, value FROM everbeat_metrics")
    return {(name, labels): value for name, labels, value in rows}


# -- waiting for delivery ---------------------------------------------------------------------------------------------


def test_an_event_waits_only_if_somebody_had_subscribed_when_it_happened(store: Store) -> None:
    register(store, "before")
    store.subscribe("shop:app", [WORKER_STARTED])
    register(store, "after")
    store.retire("after")

    (event,) = take(store, WORKER_STARTED)

    assert (event.name, event.worker_id, event.facts["name"]) == (WORKER_STARTED, "after", "after")
    assert store.undelivered() == 1


def test_one_may_subscribe_to_everything(store: Store) -> None:
    store.subscribe("shop:app", ["*"])
    register(store, "w1")
    store.retire("w1")

    assert len(taken(store)) == 2


def test_who_knows_only_some_names_is_given_only_those(store: Store) -> None:
    store.subscribe("shop:app", [WORKER_STARTED, WORKER_DEAD])
    register(store, "w1")

    assert taken(store, WORKER_DEAD) == []
    assert len(taken(store, WORKER_STARTED)) == 1


def test_what_was_taken_is_given_to_nobody_else_until_the_lease_is_over(
    open_store: OpenStore, clock: VirtualClock
) -> None:
    one, other = open_store(), open_store()
    one.subscribe("shop:app", ["*"])
    register(one, "w1")
    first = taken(one)

    assert taken(other) == []
    clock.advance(31)
    assert taken(other) == first


def test_every_application_that_subscribed_is_told(store: Store) -> None:
    store.subscribe("shop:app", ["*"])
    store.subscribe("audit:app", [WORKER_STARTED])
    register(store, "w1")

    store.settle_events("shop:app", delivered=taken(store))

    assert store.undelivered() == 1
    (event,) = take(store, app="audit:app")
    assert event.worker_id == "w1"


def test_who_subscribes_later_is_not_told_of_what_was_before(store: Store, clock: VirtualClock) -> None:
    store.subscribe("shop:app", ["*"])
    register(store, "w1")
    clock.advance(1)
    store.subscribe("late:app", ["*"])

    assert taken(store, app="late:app") == []
    assert len(taken(store)) == 1


def test_what_a_dead_worker_had_taken_is_given_to_another_at_once(store: Store) -> None:
    register(store, "w1")
    store.subscribe("shop:app", [WORKER_STARTED])
    register(store, "w2")
    first = taken(store, by="w1")

    store.declare_dead("w1", reason="gone", cause="proof")

    assert taken(store, by="w2") == first


def test_delivered_is_delivered(store: Store, clock: VirtualClock) -> None:
    store.subscribe("shop:app", ["*"])
    register(store, "w1")

    store.settle_events("shop:app", delivered=taken(store))
    clock.advance(3600)

    assert taken(store) == []
    assert store.undelivered() == 0


def test_what_was_not_tried_is_given_again_at_once(store: Store) -> None:
    store.subscribe("shop:app", ["*"])
    register(store, "w1")
    first = taken(store)

    store.settle_events("shop:app", returned=first)

    assert taken(store) == first


def test_a_failed_delivery_is_tried_again_later_each_time_and_given_up_after_ten(
    store: Store, clock: VirtualClock
) -> None:
    store.subscribe("shop:app", [WORKER_STARTED])
    register(store, "w1")
    pauses = []
    for _ in range(10):
        event = taken(store, WORKER_STARTED)
        store.settle_events("shop:app", failed=[(event[0], "ValueError: no")])
        pause = 0
        while store.undelivered() and not taken(store, WORKER_STARTED):
            clock.advance(1)
            pause += 1
        pauses.append(pause)
        store.settle_events("shop:app", returned=event)

    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 0]
    (announced,) = [event for event in store.events() if event.name == EVENT_UNDELIVERABLE]
    assert announced.facts["event"] == WORKER_STARTED
    assert announced.facts["failure"] == "ValueError: no"


def test_that_something_could_not_be_told_is_not_told_for_ever(store: Store) -> None:
    store.subscribe("shop:app", ["*"])
    store.announce([Event(name=EVENT_UNDELIVERABLE)])
    (event,) = taken(store)

    for _ in range(10):
        store.settle_events("shop:app", failed=[(event, "no")])

    assert [event.name for event in store.events()] == [EVENT_UNDELIVERABLE]


def test_a_clock_that_was_set_back_delays_nothing_for_long(store: Store, clock: VirtualClock) -> None:
    store.subscribe("shop:app", ["*"])
    register(store, "w1")
    first = taken(store)
    clock.wall -= 86_400 * SECOND

    store.subscribe("shop:app", ["*"])

    assert taken(store) == first


# -- retention --------------------------------------------------------------------------------------------------------


def cut_events(store: Store) -> None:
    after: int | None = 0
    while after is not None:
        bite = store.retain(Cut(kept=Kept.EVENTS, older_than_us=HOUR, after=after), worker_id="janitor", lease_us=LEASE)
        assert bite is not None
        after = bite.after


def test_an_event_that_waits_is_kept_however_old(store: Store, clock: VirtualClock) -> None:
    store.subscribe("shop:app", [WORKER_STARTED])
    register(store, "w1")
    store.retire("w1")
    clock.advance(7200)
    store.subscribe("shop:app", [WORKER_STARTED])

    cut_events(store)

    assert [event.name for event in store.events()] == [WORKER_STARTED]


def test_an_event_that_was_told_goes_with_its_deliveries(store: Any, clock: VirtualClock) -> None:
    store.subscribe("shop:app", [WORKER_STARTED])
    register(store, "w1")
    store.settle_events("shop:app", delivered=taken(store))
    clock.advance(7200)

    cut_events(store)

    with store.database.read() as tx:
        assert tx.all("SELECT event_id FROM everbeat_deliveries") == []


def test_a_subscription_that_nobody_renews_ends_and_its_events_with_it(store: Store, clock: VirtualClock) -> None:
    store.subscribe("shop:app", [WORKER_STARTED])
    register(store, "w1")
    taken(store)
    register(store, "w1b")
    clock.advance(7200)

    cut_events(store)
    register(store, "w2")

    assert [event.worker_id for event in store.events()] == ["w2"]
    assert store.undelivered() == 0


# -- telling the process that made it true ----------------------------------------------------------------------------


def heard_by(store: Store) -> list[tuple[str, str | None]]:
    heard: list[tuple[str, str | None]] = []

    def hear(events: Sequence[Event]) -> None:
        heard.extend((event.name, event.worker_id) for event in events)

    store.on_events(hear)
    return heard


def test_events_are_told_after_the_commit_to_the_process_that_wrote_them(open_store: OpenStore) -> None:
    one, other = open_store(), open_store()
    here, there = heard_by(one), heard_by(other)

    register(one, "w1")

    assert here == [(WORKER_STARTED, "w1")]
    assert there == []


def test_what_was_undone_is_not_told(store: Any) -> None:
    for task in ("a", "b"):
        enqueue(store, id=task)
    recover(store, claim_one(store), abandoned())
    claim = claim_one(store)
    heard = heard_by(store)
    with store.database.write() as tx:  # so that no second one can be written
        tx.run("CREATE UNIQUE INDEX no ON everbeat_history (actor)")

    recover(store, claim, abandoned())

    assert heard == []


# -- totals -----------------------------------------------------------------------------------------------------------


def test_deaths_recoveries_and_refused_writes_are_counted_for_ever(store: Store, clock: VirtualClock) -> None:
    enqueue(store, id="a")
    claim = claim_one(store)
    clock.advance(4)
    store.declare_dead("w1", reason="gone", cause="proof")
    recover(store, claim, Verdict(change=Change.RECOVER, reason="gone", losses=1))
    claim_one(store, "w2")
    settle(store, claim, completed(), outcome=succeeded())

    counted = totals(store)

    assert counted["worker_deaths_total", '{"cause":"proof"}'] == 1
    assert counted["recoveries_total", '{"action":"retry","cause":"lost"}'] == 1
    assert counted["writes_refused_total", "{}"] == 1
    assert counted["recovery_detection_seconds", '{"le":"5.0"}'] == 1
    assert counted["recovery_detection_seconds_sum", "{}"] == 4


def test_a_death_was_noticed_when_it_was_last_seen_alive_if_that_is_later_than_its_last_beat(
    store: Store, clock: VirtualClock
) -> None:
    register(store, "w1")
    clock.advance(25)

    store.declare_dead("w1", reason="gone", cause="proof", unseen_for_us=SECOND // 4)

    assert totals(store)["recovery_detection_seconds_sum", "{}"] == 0.25


@pytest.mark.parametrize("row_by_row", [False, True])
def test_the_time_from_a_recovery_to_the_next_start_is_measured_once(
    store: Store, clock: VirtualClock, row_by_row: bool
) -> None:
    enqueue(store, id="a")
    requeue(store, claim_one(store))
    clock.advance(0.2)
    (again,) = store.flush(Flush(worker_id="w1", room=a_room(1), row_by_row=row_by_row)).claims
    settle(store, again, Verdict(change=Change.HAND_BACK, billed=False))
    clock.advance(100)
    claim_one(store)

    counted = totals(store)

    assert counted["recovery_restart_seconds", '{"le":"0.25"}'] == 1
    assert sum(value for (name, _), value in counted.items() if name == "recovery_restart_seconds") == 1
