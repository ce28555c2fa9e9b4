"""Events on their way to the applications that subscribed to them: by state, not by cursor (PROTOCOL 33).

An event that somebody wanted when it happened is addressed once, to each application that had subscribed by then; so
several applications on one store are all told. A delivery waits until it is marked as delivered. Whoever takes it puts
off its next try for a while, so a messenger that dies loses nothing and two of one application share the work; what the
dead had taken is given to others at once. A failed delivery is tried again, later each time; after ten it is given up,
kept, and that is an event of its own.
"""

from collections.abc import Collection, Iterable, Sequence

from everbeat.model import event
from everbeat.model.event import EVERY, Event, EventInfo
from everbeat.store.moments import moment
from everbeat.store.reading import facts_in
from everbeat.store.transaction import Transaction
from everbeat.store.verbs.records import add_events, text

TRIES = 10
LONGEST_PAUSE_US = 300_000_000
ADDRESSED_AT_ONCE = 500

SUBSCRIBE = """
INSERT INTO everbeat_subscriptions (application, event, since, seen_at) VALUES (:application, :event, :now, :now)
ON CONFLICT (application, event) DO UPDATE SET seen_at = excluded.seen_at"""

# everbeat_events_wanted
UNADDRESSED = "SELECT id FROM everbeat_events WHERE wanted = 1 ORDER BY id LIMIT ?"
# Primary keys.
ADDRESS = """
INSERT INTO everbeat_deliveries (event_id, application)
SELECT DISTINCT e.id, s.application FROM everbeat_events e, everbeat_subscriptions s
 WHERE e.id = ? AND s.event IN (e.name, '*') AND s.since <= e.at
ON CONFLICT (event_id, application) DO NOTHING"""
ADDRESSED = "UPDATE everbeat_events SET wanted = 0 WHERE id = ?"

BUT_LOCKED = " /*pg: FOR UPDATE SKIP LOCKED */"

# everbeat_deliveries_due, all of these.
OPEN = "delivered_at IS NULL AND failures < 10"
# Put off until a time that no pause explains: the clock was set back since.
HURRY = f"UPDATE everbeat_deliveries SET deliver_after = 0 WHERE {OPEN} AND application = ? AND deliver_after > ?"
DUE = f"""
SELECT e.id, e.at, e.name, e.task_id, e.worker_id, e.facts FROM everbeat_deliveries d, everbeat_events e
 WHERE {OPEN} AND d.application = ? AND d.deliver_after <= ? AND e.id = d.event_id {{named}}
 ORDER BY d.deliver_after, d.event_id LIMIT ?"""
BUT_TAKEN = " /*pg: FOR UPDATE OF d SKIP LOCKED */"
NAMED = "AND e.name IN ({names})"
WAITING = f"""
SELECT (SELECT count(*) FROM everbeat_events WHERE wanted = 1)
     + (SELECT count(*) FROM everbeat_deliveries WHERE {OPEN})"""
LEFT_BEHIND = f"UPDATE everbeat_deliveries SET deliver_after = 0, worker_id = NULL WHERE {OPEN} AND worker_id = ?"

# Primary key, all of these.
PUT_OFF = f"""
UPDATE everbeat_deliveries SET deliver_after = ?, worker_id = ?
 WHERE event_id = ? AND application = ? AND {OPEN}"""
DELIVERED = f"UPDATE everbeat_deliveries SET delivered_at = ? WHERE event_id = ? AND application = ? AND {OPEN}"
FAILED = f"""
UPDATE everbeat_deliveries
   SET deliver_after = ? + CASE WHEN failures < 8 THEN 1000000 << CAST(failures AS INTEGER) ELSE 256000000 END,
       failures = failures + 1, failure = ?, worker_id = NULL
 WHERE event_id = ? AND application = ? AND {OPEN}"""
GIVEN_UP = """
SELECT e.name, e.task_id, e.worker_id, d.failure FROM everbeat_deliveries d, everbeat_events e
 WHERE d.event_id = ? AND d.application = ? AND d.delivered_at IS NULL AND d.failures = 10 AND e.id = d.event_id"""


def subscribe(tx: Transaction, application: str, names: Iterable[str]) -> None:
    """From now on events with these names wait to be told to it. To be said again now and then, or it is forgotten."""
    tx.many(SUBSCRIBE, [{"application": application, "event": name, "now": tx.now} for name in names])
    tx.run(HURRY, (application, tx.now + 2 * LONGEST_PAUSE_US))


def is_due(tx: Transaction, application: str, names: Collection[str]) -> bool:
    return bool(tx.all(UNADDRESSED, (1,)) or tx.all(*_due(application, names, now=tx.now, limit=1)))


def take(
    tx: Transaction, application: str, names: Collection[str], *, worker_id: str, limit: int, lease_us: int
) -> list[EventInfo]:
    """Events to tell now. Nobody else is given them before the lease has run out or this worker is dead."""
    _address(tx)
    sql, values = _due(application, names, now=tx.now, limit=limit)
    due = tx.all(sql + BUT_TAKEN, values)
    tx.many(PUT_OFF, [(tx.now + lease_us, worker_id, row[0], application) for row in due])
    return [
        EventInfo(
            id=row[0], at=moment(row[1]), name=str(row[2]), task_id=row[3], worker_id=row[4], facts=facts_in(row[5])
        )
        for row in due
    ]


def keep(tx: Transaction, application: str, events: Sequence[int], *, worker_id: str, lease_us: int) -> None:
    """They are still being told."""
    tx.many(PUT_OFF, [(tx.now + lease_us, worker_id, event_id, application) for event_id in events])


def settle(
    tx: Transaction,
    application: str,
    delivered: Sequence[int],
    failed: Sequence[tuple[int, str]],
    returned: Sequence[int],
) -> None:
    """What became of them: told, failed and why, or not tried."""
    tx.many(DELIVERED, [(tx.now, event_id, application) for event_id in delivered])
    tx.many(PUT_OFF, [(tx.now, None, event_id, application) for event_id in returned])
    given_up: list[Event] = []
    for event_id, failure in failed:
        if tx.run(FAILED, (tx.now, text(failure), event_id, application)):
            given_up += _given_up(tx, event_id, application)
    add_events(tx, given_up)


def leave_behind(tx: Transaction, worker_id: str) -> None:
    """What this worker had taken goes to others at once: it is dead."""
    tx.run(LEFT_BEHIND, (worker_id,))


def waiting(tx: Transaction) -> int:
    row = tx.one(WAITING)
    return row[0] if row else 0


def _address(tx: Transaction) -> None:
    fresh = tx.all(UNADDRESSED + BUT_LOCKED, (ADDRESSED_AT_ONCE,))
    tx.many(ADDRESS, fresh)
    tx.many(ADDRESSED, fresh)


def _due(application: str, names: Collection[str], *, now: int, limit: int) -> tuple[str, Sequence[object]]:
    ordered = [] if EVERY in names else sorted(names)
    named = NAMED.format(names=", ".join("?" * len(ordered))) if ordered else ""
    return DUE.format(named=named), (application, now, *ordered, limit)


def _given_up(tx: Transaction, event_id: int, application: str) -> list[Event]:
    """Nobody is told that the telling of this could not be told."""
    row = tx.one(GIVEN_UP, (event_id, application))
    if row is None or row[0] == event.EVENT_UNDELIVERABLE:
        return []
    name, task_id, worker_id, failure = row
    facts = {"event": name, "event_id": event_id, "application": application, "tries": TRIES, "failure": failure}
    return [Event(name=event.EVENT_UNDELIVERABLE, task_id=task_id, worker_id=worker_id, facts=facts)]
