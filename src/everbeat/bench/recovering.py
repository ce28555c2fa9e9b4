"""Measures of recovery: many orphans, many running tasks, large stores, heartbeats.

The tasks are written as if a worker had claimed and started them and then died.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from everbeat.bench.place import Failed, Ground, Place
from everbeat.config import RecoveryConfig
from everbeat.model.worker import Host, LockIdentity, NewWorker
from everbeat.run.lockfile import this_host
from everbeat.run.manual import ByHand
from everbeat.store import filling
from everbeat.store.interface import Store
from everbeat.store.messages import Held

OWNERS = 10
NAME = "bench.noop"
NO_PID = 2**22 + 1
"""Larger than any process of this machine has."""
SENDER = """
import sys, threading, time
from everbeat.bench.tasks import build
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


def ten_thousand(ground: Ground, scale: float) -> list[float]:
    return [_recover(ground, 10_000) for _ in range(3)]


def hundred_thousand(ground: Ground, scale: float) -> list[float]:
    return [_recover(ground, 100_000) for _ in range(3)]


def million(ground: Ground, scale: float) -> list[float]:
    return [_recover(ground, 1_000_000)]


def held_up(ground: Ground, scale: float) -> list[float]:
    """The longest that one enqueue() of another process took while orphans were recovered, in milliseconds."""
    with ground.place() as place, _orphans(place, max(2_000, round(200_000 * scale))) as store:
        command = [sys.executable, "-c", SENDER, place.url]
        sender = subprocess.Popen(
            command, cwd=place.directory, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert sender.stdout is not None
        sender.stdout.readline()
        ByHand(store, RecoveryConfig(integrity_check_on_startup=False)).recover()
        said, _ = sender.communicate("")
        return [float(said)]


def stale_workers(ground: Ground, scale: float) -> list[float]:
    """How long it takes to find the one silent worker among those of so many RUNNING tasks, in milliseconds."""
    samples = []
    with ground.place() as place:
        store = place.store
        _register(store, "silent")
        filling.fill_running(store, round(1_000_000 * scale), name=NAME, owner="silent", owners=OWNERS)
        filling.silence(store, "silent-3")
        for _ in range(20):
            began = time.perf_counter()
            found = ByHand(store, RecoveryConfig()).detect_stale_workers()
            samples.append((time.perf_counter() - began) * 1000)
            if [one.worker_id for one in found] != ["silent-3"]:
                raise Failed(f"{len(found)} workers are said to be silent, not one")
    return samples


def start_up(ground: Ground, scale: float) -> list[float]:
    """From the start of a worker's process to its `ready`, with 10,000 tasks in the store, half of them orphans."""
    samples = []
    for _ in range(3):
        with ground.place() as place, _orphans(place, 5_000) as store:
            filling.fill_ended(store, 5_000, name=NAME)
            began = time.perf_counter()
            place.worker()
            samples.append(time.perf_counter() - began)
    return samples


def integrity(ground: Ground, scale: float) -> list[float]:
    """Seconds for each GB of a store full of ended tasks; at full scale it has an eighth of that."""
    count, args, result = round(250_000 * scale), os.urandom(250), os.urandom(100)
    with ground.place() as place:
        store = place.store
        filling.fill_ended(store, count, name=NAME, args=args, result=result)
        store.checkpoint()
        began = time.perf_counter()
        found = store.check_integrity(budget=600)
        if not (found.passed and found.complete):
            raise Failed(f"the check did not pass: {found}")
        took = time.perf_counter() - began
        return [took * 1e9 / (place.file_bytes() or count * (len(args) + len(result)))]


def heartbeats(ground: Ground, scale: float) -> list[float]:
    """Percent of one processor that the beats of a worker with 1,000 running tasks use at the default interval, without
    what a database server uses for them."""
    samples = []
    with ground.place() as place:
        store = place.store
        _register(store, "busy", owners=1)
        filling.fill_running(store, 1_000, name=NAME, owner="busy", owners=1)
        held = [
            Held(task_id=claim.id, fence=claim.fence, role="runner", pid=1)
            for claim in store.owned_by("busy-0", limit=1_000)
        ]
        interval = RecoveryConfig().runner_heartbeat_interval_ms / 1000
        for _ in range(max(5, round(20 * scale))):
            began = time.process_time()
            if not store.beat("busy-0", held).alive:
                raise Failed("the worker that beats was declared dead")
            samples.append(100 * (time.process_time() - began) / interval)
    return samples


def _recover(ground: Ground, count: int) -> float:
    with ground.place() as place, _orphans(place, count) as store:
        began = time.perf_counter()
        report = ByHand(store, RecoveryConfig(integrity_check_on_startup=False)).recover()
        if report.successful_recoveries != count:
            raise Failed(f"{report.successful_recoveries} of {count} orphans were recovered")
        return time.perf_counter() - began


@contextmanager
def _orphans(place: Place, count: int) -> Iterator[Store]:
    store = place.store
    _register(store, "gone")
    filling.fill_running(store, count, name=NAME, owner="gone", owners=OWNERS)
    for number in range(OWNERS):
        store.declare_dead(f"gone-{number}", reason="its lock is free", cause="proof")
    store.checkpoint()
    yield store


def _register(store: Store, name: str, *, owners: int = OWNERS) -> None:
    for number in range(owners):
        store.register(_worker(f"{name}-{number}"))


def _worker(worker_id: str) -> NewWorker:
    me = this_host()
    return NewWorker(
        id=worker_id, name=worker_id, host=Host(name=me.name, boot_id=me.boot_id, pid=NO_PID, pid_started=1,
        pid_namespace=me.pid_namespace), lock=LockIdentity(path="", device=0, inode=0), queues=None,
        task_names=(NAME,), processes=1, async_slots=0, beat_interval_ms=30_000, version="bench",
    )  # fmt: skip
