"""Measure one peer, in its own environment: `python -m bench.peers.driver PEER KIND JOB COUNT`. Prints JSON.

An adapter, bench/peers/with_PEER.py, has these functions, each made of the peer's public API only:

    prepare()                      make the tables; once
    send(kind, count) -> seconds   one call for each no-op, each waited for
    send_bulk(kind, count)         the same by the peer's way to send many; left out if it has none
    send_many(kind, count)         the fastest way to send what is drained; left out if it is one of these
    send_stamp(path)               a task that stamps this file
    worker(kind) -> words          the command of a worker with the settings of this variant
    finished(count) -> int         how many of so many no-ops are finished, as the store or backend says
    results(count) -> milliseconds from sending to the result in the sender's hands; left out if it has none

`kind` is "sync" or "async": whether the function is `def` or `async def`.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.peers import kit

DRAIN_SECONDS = 180.0
READY_SECONDS = 60.0
WARM_UP = 5
STOP_SECONDS = 3.0
"""What is measured is over by then, and all that was stored is thrown away."""
TICKS = os.sysconf("SC_CLK_TCK")


def enqueue(peer: ModuleType, kind: str, count: int) -> dict[str, list[float]]:
    """Tasks accepted in each second, one by one and in bulk."""
    peer.send(kind, 20)
    found = {"enqueue.single": [count / peer.send(kind, count) for _ in range(3)]}
    if hasattr(peer, "send_bulk"):
        found["enqueue.bulk"] = [count * 5 / peer.send_bulk(kind, count * 5) for _ in range(3)]
    return found


def drain(peer: ModuleType, kind: str, count: int) -> dict[str, list[float]]:
    """From the first begin of a task to the last completion in the store."""
    listens_only, before = getattr(peer, "LISTENS_ONLY", False), 0
    if not listens_only:
        _send_many(peer, kind, count)
    with _worker(peer, kind) as process:
        if listens_only:
            _await_worker(peer, process)
            time.sleep(1)
            before = peer.finished(count)
            _send_many(peer, kind, count)
        kit.until_drained(lambda: peer.finished(count) - before, count, worker=process, seconds=DRAIN_SECONDS)
        ended = time.monotonic_ns()
    first = kit.stamp_of(kit.FIRST)
    assert first is not None
    return {f"drain.{kind}": [count / ((ended - first) / 1e9)]}


def latency(peer: ModuleType, kind: str, count: int) -> dict[str, list[float]]:
    """Milliseconds on an idle worker: to the begin of a task, and to its result."""
    found: dict[str, list[float]] = {"latency.pickup": []}
    with _worker(peer, kind) as process:
        _await_worker(peer, process)
        for number in range(WARM_UP + count):
            path = kit.DIRECTORY / f"pickup-{number}"
            sent = time.monotonic_ns()
            peer.send_stamp(str(path))
            kit.until(lambda path=path: kit.stamp_of(path), worker=process, seconds=30)
            found["latency.pickup"].append(((kit.stamp_of(path) or 0) - sent) / 1e6)
            time.sleep(0.02)
        if hasattr(peer, "results"):
            found["latency.result"] = peer.results(max(5, count // 4))
    found["latency.pickup"] = found["latency.pickup"][WARM_UP:]
    return found


def idle(peer: ModuleType, kind: str, count: int) -> dict[str, list[float]]:
    """Of a worker that has run one task: memory in MB, percent of one processor over so many seconds."""
    with _worker(peer, kind) as process:
        _await_worker(peer, process)
        time.sleep(2)
        before = sum(map(_cpu, _family(process.pid)))
        time.sleep(count)
        used = sum(map(_cpu, _family(process.pid))) - before
        return {"idle.cpu": [100 * used / count], "idle.memory": [sum(map(_pss, _family(process.pid)))]}


def _send_many(peer: ModuleType, kind: str, count: int) -> None:
    fastest = getattr(peer, "send_many", None) or getattr(peer, "send_bulk", peer.send)
    fastest(kind, count)


def _await_worker(peer: ModuleType, process: "subprocess.Popen[bytes]") -> None:
    """Until it has run a task. Sent again and again: some take nothing that was sent before they listened."""
    give_up = time.monotonic() + READY_SECONDS
    number = 0
    while time.monotonic() < give_up:
        path = kit.DIRECTORY / f"ready-{os.getpid()}-{number}"
        number += 1
        peer.send_stamp(str(path))
        try:
            kit.until(lambda path=path: kit.stamp_of(path), worker=process, seconds=3)
        except TimeoutError:
            continue
        return
    raise TimeoutError("the worker runs nothing")


@contextmanager
def _worker(peer: ModuleType, kind: str) -> "Iterator[subprocess.Popen[bytes]]":
    with (kit.DIRECTORY / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            peer.worker(kind), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _family(pid: int) -> list[int]:
    found = [pid]
    for member in found:
        for thread in Path(f"/proc/{member}/task").glob("*/children"):
            found += [int(child) for child in thread.read_text().split()]
    return found


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _pss(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def main() -> None:
    name, kind, job, count = sys.argv[1:]
    peer: Any = importlib.import_module(f"bench.peers.with_{name}")
    jobs = {"enqueue": enqueue, "drain": drain, "latency": latency, "idle": idle}
    peer.prepare()
    try:
        said: dict[str, Any] = jobs[job](peer, kind, int(count))
    except (RuntimeError, TimeoutError) as error:
        said = {"error": str(error)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
