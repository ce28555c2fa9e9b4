"""Events on their way to those who subscribed to them: by state, not by cursor (PROTOCOL 33).

An event that was wanted when it happened waits until it is marked as delivered. Whoever takes it puts off its next
delivery for a while, so a messenger that dies loses nothing and two of them share the work. A failed delivery is tried
again, later each time; after ten it is given up, kept, and that is an event of its own.
"""

import json
from collections.abc import Collection, Iterable, Sequence

from everbeat.model import event
from everbeat.model.event import EVERY, Event, EventInfo
from everbeat.store.moments import moment
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs.records import add_events, text

TRIES = 10
FIRST_PAUSE_US = 1_000_000
LONGEST_PAUSE_US = 300_000_000

SUBSCRIBE = """
INSERT INTO everbeat_subscriptions (event, since, seen_at) VALUES (:event, :now, :now)
ON CONFLICT (event) DO UPDATE SET seen_at = :now"""

# everbeat_events_due. Put off until a time that no pause explains: the clock was set back since.
HURRY = """
UPDATE everbeat_events SET deliver_after = 0
 WHERE wanted = 1 AND delivered_at IS NULL AND failures < 10 AND deliver_after > ?"""

# everbeat_events_due
DUE = """
SELECT id, at, name, task_id, worker_id, facts, failures FROM everbeat_events
 WHERE wanted = 1 AND delivered_at IS NULL AND failures < 10 AND deliver_after <= ? {named}
 ORDER BY deliver_after, id LIMIT ? /*pg: FOR UPDATE SKIP LOCKED */"""
NAMED = "AND name IN ({names})"

# Primary key, all of them.
PUT_OFF = "UPDATE everbeat_events SET deliver_after = ? WHERE id = ?"
DELIVERED = "UPDATE everbeat_events SET delivered_at = ? WHERE id = ? AND delivered_at IS NULL"
FAILED = """
UPDATE everbeat_events SET failures = failures + 1, failure = ?, deliver_after = ?
 WHERE id = ? AND delivered_at IS NULL AND failures = ?"""
FAILURES = "SELECT failures FROM everbeat_events WHERE id = ? AND delivered_at IS NULL AND failures < 10"
GIVEN_UP = """
SELECT name, task_id, worker_id, failure FROM everbeat_events
 WHERE id = ? AND delivered_at IS NULL AND failures = 10"""

# everbeat_events_due
WAITING = "SELECT count(*) FROM everbeat_events WHERE wanted = 1 AND delivered_at IS NULL AND failures < 10"


def subscribe(tx: Transaction, names: Iterable[str]) -> None:
    """From now on events with these names wait to be delivered. Again now and then, or it is forgotten."""
    tx.many(SUBSCRIBE, [{"event": name, "now": tx.now} for name in names])
    tx.run(HURRY, (tx.now + 2 * LONGEST_PAUSE_US,))


def is_due(tx: Transaction, names: Collection[str]) -> bool:
    return bool(_due(tx, names, limit=1))


def take(tx: Transaction, names: Collection[str], *, limit: int, lease_us: int) -> list[EventInfo]:
    """Events to deliver now. Nobody else is given them before the lease has run out."""
    due = _due(tx, names, limit=limit)
    tx.many(PUT_OFF, [(tx.now + lease_us, row[0]) for row in due])
    return [
        EventInfo(id=row[0], at=moment(row[1]), name=row[2], task_id=row[3], worker_id=row[4], facts=json.loads(row[5]))
        for row in due
    ]


def keep(tx: Transaction, events: Sequence[int], *, lease_us: int) -> None:
    """They are still being delivered."""
    tx.many(PUT_OFF, [(tx.now + lease_us, event_id) for event_id in events])


def settle(
    tx: Transaction, delivered: Sequence[int], failed: Sequence[tuple[int, str]], returned: Sequence[int]
) -> None:
    """What became of them: told, failed and why, or not tried."""
    tx.many(DELIVERED, [(tx.now, event_id) for event_id in delivered])
    tx.many(PUT_OFF, [(tx.now, event_id) for event_id in returned])
    given_up: list[Event] = []
    for event_id, failure in failed:
        row = tx.one(FAILURES, (event_id,))
        if row is not None:
            pause = min(LONGEST_PAUSE_US, FIRST_PAUSE_US << row[0])
            tx.run(FAILED, (text(failure), tx.now + pause, event_id, row[0]))
            given_up += _given_up(tx, event_id)
    add_events(tx, given_up)


def waiting(tx: Transaction) -> int:
    row = tx.one(WAITING)
    return row[0] if row else 0


def _due(tx: Transaction, names: Collection[str], *, limit: int) -> list[Row]:
    ordered = [] if EVERY in names else sorted(names)
    named = NAMED.format(names=", ".join("?" * len(ordered))) if ordered else ""
    return tx.all(DUE.format(named=named), (tx.now, *ordered, limit))


def _given_up(tx: Transaction, event_id: int) -> list[Event]:
    """Nobody is told that the telling of this could not be told."""
    row = tx.one(GIVEN_UP, (event_id,))
    if row is None or row[0] == event.EVENT_UNDELIVERABLE:
        return []
    name, task_id, worker_id, failure = row
    facts = {"event": name, "event_id": event_id, "tries": TRIES, "failure": failure}
    return [Event(name=event.EVENT_UNDELIVERABLE, task_id=task_id, worker_id=worker_id, facts=facts)]
