"""The life of a worker: registered, beating, stopped, or declared dead by others.

A beat never revives (PROTOCOL 2): it is an UPDATE that asks for `alive`, and 0 rows means "I was declared dead".
Death is one compare-and-set; when silence is the evidence, the silence is tested again in it. Liveness ages are
microseconds of one clock, that of the boot or of the database (PROTOCOL 15): a row of another clock is silent
without end.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from everbeat.decide.liveness import is_outage
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.worker import Host, LockIdentity, NewWorker, Standing, WorkerInfo, WorkerState, WorkerStatus
from everbeat.store import schema
from everbeat.store.messages import Beat, Held
from everbeat.store.moments import moment, moment_or_none
from everbeat.store.transaction import Row, Transaction
from everbeat.store.verbs import telling, totals
from everbeat.store.verbs.records import add_events, text

FOREVER_US = 1 << 62
STATUSES: dict[object, WorkerStatus] = {status.value: status for status in WorkerStatus}
LONGEST_LEASE_US = 2 * 3_600_000_000
"""No role is taken for longer: a lease beyond this was written by hand, and stops nobody."""
RAREST_BEAT_MS = 120_000
"""No worker beats more rarely: one that says so was written by hand, and is not waited for without end."""
LONGEST_EXCLUSIVE_MS = 3_600_000
"""No worker has a longer lease."""

STORE_ID = "SELECT value FROM everbeat_meta WHERE key = 'store_id'"
META = f"SELECT key, value FROM everbeat_meta WHERE key IN ('store_id', '{schema.MIN_READER}')"

REGISTER = """
INSERT INTO everbeat_workers (id, name, status, hostname, boot_id, clock_id, pid, pid_started, pid_namespace, lock_path,
                              lock_device, lock_inode, queues, task_names, processes, async_slots, beat_interval_ms,
                              exclusive_lease_ms, version, knows_schema, started_at, beat_at, beat_mono)
VALUES (?, ?, 'alive', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

RENEW_NAMES = "UPDATE everbeat_workers SET task_names = ? WHERE id = ? AND status = 'alive'"

BEATER = "SELECT status, beat_seq FROM everbeat_workers WHERE id = ?"

BEAT = """
UPDATE everbeat_workers SET beat_at = ?, beat_mono = ?, beat_seq = beat_seq + 1 WHERE id = ? AND status = 'alive'"""

BEAT_FOR_TASK = """
INSERT INTO everbeat_heartbeats (task_id, sender_id, role, sent_at, hostname, pid, fence)
VALUES (?, ?, ?, ?, coalesce((SELECT hostname FROM everbeat_workers WHERE id = ?), ''), ?, ?)"""

ADD_STATE = """
INSERT INTO everbeat_worker_states
       (worker_id, snapshot_at, hostname, pid, worker_started_at, processes, async_slots, queues, tasks_running,
        tasks_claimed, tasks_completed, tasks_failed, store_errors, memory_usage_mb, memory_percent, cpu_percent)
SELECT id, ?, hostname, pid, started_at, processes, async_slots, queues, ?, ?, ?, ?, ?, ?, ?, ?
  FROM everbeat_workers WHERE id = ?"""

HEALTH = "SELECT healthy_since_mono, last_write_mono FROM everbeat_health WHERE id = 1 AND clock_id = ?"

# everbeat_workers_alive. Who could have written, and how often it does.
BEATS = "SELECT beat_mono, beat_interval_ms FROM everbeat_workers WHERE status = 'alive' AND clock_id = ?"

SET_HEALTH = """
INSERT INTO everbeat_health (id, clock_id, healthy_since_mono, last_write_mono) VALUES (1, :clock_id, :since, :mono)
ON CONFLICT (id) DO UPDATE SET clock_id = :clock_id, healthy_since_mono = :since, last_write_mono = :mono"""

RETIRE = """
UPDATE everbeat_workers SET status = 'stopped', ended_at = ?, end_cause = 'stopped', end_reason = 'stopped'
 WHERE id = ? AND status = 'alive'"""

# A flush of that worker, which has read that it is alive, is waited for: what it claims is found afterwards.
LAST_BEAT = "SELECT beat_mono FROM everbeat_workers WHERE id = ? AND clock_id = ? /*pg: FOR UPDATE */"

# The verdict is tested again in the write that makes it true.
DECLARE_DEAD = """
UPDATE everbeat_workers SET status = 'dead', ended_at = :now, end_cause = :cause, end_reason = :reason
 WHERE id = :id AND status = 'alive'"""
# Nothing is counted with what is stored: PostgreSQL refuses the whole statement for one number that is too large.
IF_SILENT = " AND (clock_id <> :clock_id OR beat_mono < :mono - :silent OR beat_mono > :mono + :silent)"

FREE_ROLES = "DELETE FROM everbeat_roles WHERE worker_id = ?"

TAKE_ROLE = """
INSERT INTO everbeat_roles (role, worker_id, clock_id, until_mono) VALUES (:role, :id, :clock_id, :until)
ON CONFLICT (role) DO UPDATE SET worker_id = :id, clock_id = :clock_id, until_mono = :until
 WHERE everbeat_roles.worker_id = :id OR everbeat_roles.clock_id <> :clock_id
    OR everbeat_roles.until_mono < :mono OR everbeat_roles.until_mono > :mono + :longest"""

ROLE_HOLDER = "SELECT worker_id FROM everbeat_roles WHERE role = ? AND clock_id = ? AND until_mono >= ?"

SERVED = "SELECT id, queues, task_names FROM everbeat_workers WHERE status = 'alive'"

WORKERS = """
SELECT w.id, w.name, w.status, w.hostname, w.boot_id, w.pid, w.pid_started, w.pid_namespace, w.lock_path, w.lock_device,
       w.lock_inode, w.queues, w.processes, w.async_slots, w.beat_interval_ms, w.version, w.started_at, w.beat_at,
       w.beat_mono, w.ended_at, w.end_reason,
       {held}, w.exclusive_lease_ms, w.clock_id
  FROM everbeat_workers w"""
WORKERS_ALIVE = WORKERS.format(held="0") + " WHERE w.status = 'alive' ORDER BY w.id"
WORKERS_ALL = (
    WORKERS.format(
        held="""(SELECT count(*) FROM everbeat_tasks t
                  WHERE t.worker_id = w.id AND t.status IN ('CLAIMED', 'RUNNING'))"""
    )
    + " ORDER BY w.started_at, w.id"
)


@dataclass(frozen=True, slots=True)
class Served:
    """What a worker can run."""

    queues: frozenset[str] | None
    names: frozenset[str]

    def covers(self, queue: str, name: str | None) -> bool:
        return (self.queues is None or queue in self.queues) and (name is None or name in self.names)


def store_id(tx: Transaction) -> str:
    row = tx.one(STORE_ID)
    return row[0] if row else ""


def register(tx: Transaction, worker: NewWorker) -> None:
    host, lock = worker.host, worker.lock
    _keep_health(tx)
    tx.run(
        REGISTER,
        (worker.id, worker.name, host.name, host.boot_id, tx.clock_id, host.pid, host.pid_started, host.pid_namespace,
         lock.path, lock.device, lock.inode, None if worker.queues is None else json.dumps(worker.queues),
         json.dumps(worker.task_names), worker.processes, worker.async_slots, worker.beat_interval_ms,
         worker.exclusive_lease_ms, worker.version, schema.newest(), tx.now, tx.now, tx.mono),
    )  # fmt: skip
    facts = {"name": worker.name, "pid": host.pid, "hostname": host.name, "processes": worker.processes}
    add_events(tx, [Event(name=event.WORKER_STARTED, worker_id=worker.id, facts=facts)])


def renew_names(tx: Transaction, worker_id: str, task_names: Collection[str]) -> None:
    tx.run(RENEW_NAMES, (json.dumps(tuple(task_names)), worker_id))


def beat(tx: Transaction, worker_id: str, held: Collection[Held], seen: int | None = None) -> Beat:
    beater = tx.one(BEATER, (worker_id,))
    if seen is not None and (beater is None or beater[1] < seen):
        return Beat(alive=False, is_older=True)
    if beater is None or beater[0] != WorkerStatus.ALIVE:
        return Beat(alive=False)
    _keep_health(tx)
    tx.run(BEAT, (tx.now, tx.mono, worker_id))
    beat_for_tasks(tx, worker_id, held)
    return Beat(alive=True, seq=beater[1] + 1)


def standing(tx: Transaction, worker_id: str, *, is_same_file: bool) -> Standing:
    beater = tx.one(BEATER, (worker_id,))
    meta: dict[str, str] = {key: str(value) for key, value in tx.all(META)}
    return Standing(
        store_id=meta.get("store_id", ""),
        beat_seq=beater[1] if beater else None,
        is_same_file=is_same_file,
        is_too_new=schema.outgrows(meta.get(schema.MIN_READER, "")),
    )


def renew(tx: Transaction, worker_id: str) -> None:
    """A beat for the worker alone."""
    tx.run(BEAT, (tx.now, tx.mono, worker_id))


def beat_for_tasks(tx: Transaction, worker_id: str, held: Collection[Held]) -> None:
    rows = [(h.task_id, worker_id, h.role, tx.now, worker_id, h.pid, h.fence) for h in held]
    tx.many(BEAT_FOR_TASK, rows)


def add_state(tx: Transaction, worker_id: str, state: WorkerState) -> None:
    tx.run(ADD_STATE, (tx.now, *astuple(state), worker_id))


def retire(tx: Transaction, worker_id: str, facts: Mapping[str, Any]) -> bool:
    if not tx.run(RETIRE, (tx.now, worker_id)):
        return False
    tx.run(FREE_ROLES, (worker_id,))
    add_events(tx, [Event(name=event.WORKER_STOPPED, worker_id=worker_id, facts=dict(facts))])
    return True


def declare_dead(tx: Transaction, worker_id: str, *, reason: str, cause: str, silent_for_us: int | None,
                 unseen_for_us: int | None = None) -> bool:  # fmt: skip
    values = {"id": worker_id, "now": tx.now, "cause": cause, "reason": text(reason)}
    condition = ""
    if silent_for_us is not None:
        condition = IF_SILENT
        values |= {"mono": tx.mono, "clock_id": tx.clock_id, "silent": silent_for_us}
    beat = tx.one(LAST_BEAT, (worker_id, tx.clock_id))
    if not tx.run(DECLARE_DEAD + condition, values):
        return False
    tx.run(FREE_ROLES, (worker_id,))
    telling.leave_behind(tx, worker_id)
    facts: dict[str, Any] = {"cause": cause, "reason": reason}
    if beat is not None and isinstance(beat[0], int):
        silent_for_us = tx.mono - beat[0] if unseen_for_us is None else min(unseen_for_us, tx.mono - beat[0])
        facts["silent_for"] = round(silent_for_us / 1e6, 3)
    add_events(tx, [Event(name=event.WORKER_DEAD, worker_id=worker_id, facts=facts)])
    return True


def take_role(tx: Transaction, role: str, worker_id: str, *, lease_us: int) -> bool:
    values = {"role": role, "id": worker_id, "clock_id": tx.clock_id, "mono": tx.mono, "until": tx.mono + lease_us,
              "longest": LONGEST_LEASE_US}  # fmt: skip
    if not tx.run(TAKE_ROLE, values):
        return False
    totals.note(tx, f"{role}_last_pass_timestamp_seconds", tx.now / 1e6)
    return True


def role_holder(tx: Transaction, role: str) -> str | None:
    row = tx.one(ROLE_HOLDER, (role, tx.clock_id, tx.mono))
    return row[0] if row else None


def healthy_for_us(tx: Transaction) -> int:
    since = _healthy_since(tx)
    return 0 if since is None else tx.mono - since


def workers(tx: Transaction, *, alive_only: bool) -> list[WorkerInfo]:
    return [_info(row, tx) for row in tx.all(WORKERS_ALIVE if alive_only else WORKERS_ALL)]


def served(tx: Transaction) -> Iterator[tuple[str, Served]]:
    """What each living worker can run."""
    for worker_id, queues, names in tx.all(SERVED):
        served = names_in(queues)
        yield worker_id, Served(None if served is None else frozenset(served), frozenset(names_in(names) or ()))


def _keep_health(tx: Transaction) -> None:
    """The store is written now; was it since the last time? Asked before the writer's own beat is renewed."""
    since = _healthy_since(tx)
    tx.run(SET_HEALTH, {"clock_id": tx.clock_id, "since": tx.mono if since is None else since, "mono": tx.mono})


def _healthy_since(tx: Transaction) -> int | None:
    """None: the store, or everybody who writes to it, stands still or stood still until now."""
    health = tx.one(HEALTH, (tx.clock_id,))
    if health is None:
        return None
    since, last_write = health
    if not isinstance(since, int) or not isinstance(last_write, int) or since > tx.mono:
        return None  # not of our writing
    beats = [
        (at, every) for at, every in tx.all(BEATS, (tx.clock_id,)) if isinstance(at, int) and isinstance(every, int)
    ]
    return None if is_outage(last_write, tx.mono, beats) else since


def _info(row: Row, tx: Transaction) -> WorkerInfo:
    """A row that somebody wrote by hand must not keep the others from being seen: what makes no sense in it is taken
    for nothing, or for silence."""
    same_clock = row[23] == tx.clock_id
    return WorkerInfo(
        id=row[0],
        name=row[1],
        status=STATUSES.get(row[2], WorkerStatus.DEAD),
        host=Host(name=row[3], boot_id=row[4], pid=row[5], pid_started=row[6], pid_namespace=row[7]),
        lock=LockIdentity(path=str(row[8]), device=row[9], inode=row[10]),
        queues=names_in(row[11]),
        processes=row[12],
        async_slots=row[13],
        beat_interval_ms=_up_to(RAREST_BEAT_MS, row[14], otherwise=0),
        version=row[15],
        started_at=moment(_number(row[16])),
        last_beat_at=moment(_number(row[17])),
        silent_for_us=abs(tx.mono - _number(row[18])) if same_clock else FOREVER_US,
        same_clock=same_clock,
        ended_at=moment_or_none(row[19] if isinstance(row[19], int) else None),
        end_reason=row[20],
        held=row[21],
        exclusive_lease_ms=_up_to(LONGEST_EXCLUSIVE_MS, row[22], otherwise=LONGEST_EXCLUSIVE_MS),
    )


def _number(stored: object) -> int:
    return stored if isinstance(stored, int) else 0


def _up_to(most: int, stored: object, *, otherwise: int) -> int:
    return stored if isinstance(stored, int) and 0 <= stored <= most else otherwise


def names_in(stored: str | None) -> tuple[str, ...] | None:
    """None is every name. No name at all for what can not be read."""
    if stored is None:
        return None
    try:
        return tuple(str(name) for name in json.loads(stored))
    except (ValueError, TypeError):
        return ()
