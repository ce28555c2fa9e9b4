"""Measures of recovery: many orphans, many running tasks, large files.

The tasks are written into the store by SQL, as if a worker had claimed and started them and then died.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from bench.yard import ROOT, Yard, yard
from everbeat.config import RecoveryConfig
from everbeat.model.worker import Host, LockIdentity, NewWorker
from everbeat.run import manual
from everbeat.run.lockfile import this_host
from everbeat.store.interface import Held
from everbeat.store.sqlite.store import SQLiteStore

OWNERS = 10
FILL = """
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count - 1)
INSERT INTO everbeat_tasks (id, name, queue, priority, args, status, created_at, run_at, started_at, fence, worker_id,
                            attempt, max_attempts, policy)
SELECT printf('0192%08x-%s', n, lower(hex(randomblob(8)))), 'bench.noop', 'default', 100, x'7b7d', :status, 1, 1, 1, 1,
       printf('%s-%d', :owner, n * :owners / :count), 1, 3, '{"max_attempts":3,"has_retry":true}'
  FROM numbers"""
BULK = """
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count - 1)
INSERT INTO everbeat_tasks (id, name, queue, priority, args, status, created_at, run_at, finished_at, result)
SELECT printf('0192%08x-%s', n, lower(hex(randomblob(8)))), 'bench.noop', 'default', 100, randomblob(250), 'COMPLETED',
       1, 1, 1, randomblob(100)
  FROM numbers"""
SENDER = """
import sys, threading, time
from bench.tasks import build
noop = build(sys.argv[1]).noop
noop.enqueue(1, 2)
print("sending", flush=True)
stop, worst = threading.Event(), 0.0
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
while not stop.is_set():
    began = time.monotonic()
    noop.enqueue(1, 2)
    worst = max(worst, time.monotonic() - began)
    time.sleep(0.005)
print(worst * 1000)
"""


def ten_thousand_orphans(scale: float) -> list[float]:
    return [_recover_orphans(round(10_000 * scale)) for _ in range(3)]


def million_orphans(scale: float) -> list[float]:
    return [_recover_orphans(round(1_000_000 * scale))]


def held_up_by_recovery(scale: float) -> list[float]:
    """The longest that one enqueue of another process took while orphans were recovered, in milliseconds."""
    with yard() as place, _orphans(place, round(200_000 * scale)) as store:
        command = [sys.executable, "-c", SENDER, place.url]
        sender = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert sender.stdout is not None
        sender.stdout.readline()
        manual.recover(store, RecoveryConfig(integrity_check_on_startup=False))
        said, _ = sender.communicate("")
        return [float(said)]


def stale_workers(scale: float) -> list[float]:
    """How long it takes to find the stale workers among so many RUNNING tasks, in milliseconds."""
    samples = []
    with yard() as place, _store(place) as store:
        for number in range(OWNERS):
            store.register(_worker(f"silent-{number}"))
        _fill(store, round(1_000_000 * scale), owner="silent")
        with store.database.write() as tx:
            tx.run("UPDATE everbeat_workers SET beat_mono = 0 WHERE id = 'silent-3'")
        for _ in range(20):
            began = time.perf_counter()
            assert len(manual.detect_stale_workers(store, RecoveryConfig())) == 1
            samples.append((time.perf_counter() - began) * 1000)
    return samples


def start_up(scale: float) -> list[float]:
    """From the start of a worker's process to its `ready`, with tasks in the store, half of them orphans."""
    samples = []
    for _ in range(3):
        with yard() as place:
            count = round(10_000 * scale)
            with _orphans(place, count // 2) as store, store.database.write() as tx:
                tx.run(BULK, {"count": count - count // 2})
            began = time.perf_counter()
            place.worker("--processes", "2")
            samples.append(time.perf_counter() - began)
    return samples


def integrity_check(scale: float) -> list[float]:
    """Seconds for each GB of a file full of ended tasks; the file itself has an eighth of that."""
    with yard() as place, _store(place) as store:
        with store.database.write() as tx:
            tx.run(BULK, {"count": round(250_000 * scale)})
        store.checkpoint()
        began = time.perf_counter()
        result = store.check_integrity(budget=600)
        assert result.passed
        assert result.complete
        return [(time.perf_counter() - began) * 1e9 / store.database.path.stat().st_size]


def heartbeats(scale: float) -> list[float]:
    """Percent of one core that the beats of a worker with 1,000 running tasks use, at the default interval."""
    samples = []
    with yard() as place, _store(place) as store:
        store.register(_worker("busy-0"))
        _fill(store, 1_000, owner="busy", owners=1)
        held = [
            Held(task_id=claim.id, fence=claim.fence, role="runner", pid=1)
            for claim in store.owned_by("busy-0", limit=1_000)
        ]
        interval = RecoveryConfig().runner_heartbeat_interval_ms / 1000
        for _ in range(round(20 * scale) + 1):
            began = time.process_time()
            assert store.beat("busy-0", held).alive
            samples.append(100 * (time.process_time() - began) / interval)
    return samples


def _recover_orphans(count: int) -> float:
    with yard() as place, _orphans(place, count) as store:
        began = time.perf_counter()
        report = manual.recover(store, RecoveryConfig(integrity_check_on_startup=False))
        assert report.successful_recoveries == count
        return time.perf_counter() - began


@contextmanager
def _orphans(place: Yard, count: int) -> Iterator[SQLiteStore]:
    with _store(place) as store:
        for number in range(OWNERS):
            store.register(_worker(f"gone-{number}"))
        _fill(store, count, owner="gone")
        for number in range(OWNERS):
            store.declare_dead(f"gone-{number}", reason="its lock is free", cause="proof")
        store.checkpoint()
        yield store


@contextmanager
def _store(place: Yard) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(place.directory / "bench.db")) as store:
        yield store


def _fill(store: SQLiteStore, count: int, *, owner: str, owners: int = OWNERS) -> None:
    with store.database.write() as tx:
        tx.run(FILL, {"count": count, "status": "RUNNING", "owner": owner, "owners": owners})


def _worker(worker_id: str) -> NewWorker:
    me = this_host()
    return NewWorker(
        id=worker_id, name=worker_id, host=Host(name=me.name, boot_id=me.boot_id, pid=2**22 + 1, pid_started=1,
        pid_namespace=me.pid_namespace), lock=LockIdentity(path="", device=0, inode=0), queues=None,
        task_names=("bench.noop",), processes=1, async_slots=0, beat_interval_ms=30_000, version="bench",
    )  # fmt: skip
