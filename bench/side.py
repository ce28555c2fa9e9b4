"""Measure what stands beside Everbeat: the floor, and the peers. Who can not be measured is named, and stops nobody."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.aims import PGBENCH
from bench.environments import ROOT, NotInstalled, environment, version_of
from bench.limit import pgbench
from bench.peers.catalogue import Peer
from bench.servers import Servers
from everbeat.bench.catalogue import MEASURES
from everbeat.bench.figures import Better, Figure, Missing
from everbeat.bench.machine import Watch

JOB_SECONDS = 400
TITLES: dict[str, tuple[str, str, Better]] = {
    **{measure.key: (measure.title, measure.unit, measure.better) for measure in MEASURES},
    "drain.sync": ("drain, sync", "tasks/s", "higher"),
}


class Unmeasured(Exception):
    """A measurement failed; the message says how."""


@dataclass(frozen=True)
class Job:
    """One start of the driver, in a directory and a database with nothing in them."""

    peer: Peer
    variant: str
    kind: str
    name: str
    count: int
    repeats: int = 1

    @property
    def title(self) -> str:
        return f"{self.peer.name}, {self.variant}: {self.name} {self.kind}"


def jobs(peer: Peer, scale: float, wanted: Callable[[str], bool]) -> list[Job]:
    """Drains with all settings; sending, latency and idling with the ones that serve it best."""
    drained = max(50, round(peer.size * scale))
    found = [Job(peer, variant, kind, "drain", drained, 3) for variant in peer.variants for kind in peer.kinds]
    kind = peer.kinds[0]
    found.append(Job(peer, peer.quick, kind, "enqueue", max(50, round(1_000 * scale))))
    found.append(Job(peer, peer.quick, kind, "latency", max(5, round(100 * scale))))
    found.append(Job(peer, peer.quick, kind, "idle", max(2, round(10 * scale))))
    return [job for job in found if wanted(job.name)]


def measure_peer(
    peer: Peer, all_jobs: Sequence[Job], servers: Servers, show: Callable[[str], None]
) -> tuple[list[Figure], list[Missing]]:
    try:
        show(f"{peer.name}: installing")
        python = environment(peer.name)
        version = version_of(python, peer.package)
    except (NotInstalled, OSError, subprocess.SubprocessError) as error:
        return [], [Missing(subject=peer.name, reason=f"could not be installed: {error}")]
    figures: list[Figure] = []
    missing: list[Missing] = []
    for job in all_jobs:
        show(job.title)
        try:
            figures += _figures(job, python, version, servers)
        except (NotInstalled, Unmeasured) as error:
            missing.append(Missing(subject=job.title, reason=str(error)))
    return figures, missing


def _figures(job: Job, python: Path, version: str, servers: Servers) -> Iterator[Figure]:
    taken: dict[str, list[float]] = {}
    watch = Watch(servers.pids)
    for _ in range(job.repeats):
        url = "" if job.peer.store == "sqlite" else servers.url(job.peer.store)
        for key, samples in _drive(job, python, url).items():
            taken.setdefault(key, []).extend(samples)
    busy = watch.foreign_cores()
    for key, samples in taken.items():
        yield figure(key, samples, subject=job.peer.name, variant=job.variant, store=job.peer.store, version=version,
                     note=job.peer.note, foreign_cores=busy)  # fmt: skip


def _drive(job: Job, python: Path, url: str) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="everbeat-bench-", ignore_cleanup_errors=True) as directory:
        surroundings = {"BENCH_URL": url, "BENCH_VARIANT": job.variant, "BENCH_DIRECTORY": directory}
        words = [python, "-m", "bench.peers.driver", job.peer.name, job.kind, job.name, str(job.count)]
        try:
            return run_json(words, surroundings)
        except Unmeasured as error:
            log = Path(directory) / "worker.log"
            said = log.read_text(errors="replace").strip().splitlines()[-3:] if log.exists() else []
            raise Unmeasured(f"{error}{'; its worker said: ' if said else ''}{' / '.join(said)}") from error


def run_json(words: Sequence[str | Path], surroundings: dict[str, str]) -> dict[str, Any]:
    """What a program prints in its last line."""
    process = subprocess.Popen(
        words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)} | surroundings, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, complaints = process.communicate(timeout=JOB_SECONDS)
    except subprocess.TimeoutExpired as late:
        raise Unmeasured(f"not finished in {JOB_SECONDS}s") from late
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        last = [line for line in complaints.splitlines() if line.strip()] or ["no word"]
        raise Unmeasured(f"ended with {process.returncode}: {last[-1]}")
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    if "error" in found:
        raise Unmeasured(found["error"])
    return found


def measure_floor(store: str, scale: float, servers: Servers, *, key: str, batch: float | None) -> list[Figure]:
    """Of this measure; of a drain only if its batch is known. Raises NotInstalled or Unmeasured."""
    url = "" if store == "sqlite" else servers.url(store)
    asked = {"url": url, "scale": scale, "keys": [key], "batches": {} if batch is None else {key: batch}}
    watch = Watch(servers.pids)
    found = run_json([sys.executable, "-m", "bench.limit", json.dumps(asked)], {})
    busy = watch.foreign_cores()
    return [figure(key, taken["samples"], subject="limit", store=store, foreign_cores=busy, note=taken["note"],
                   batch=taken["batch"] and round(taken["batch"], 2)) for key, taken in found.items()]  # fmt: skip


def measure_pgbench(scale: float, servers: Servers, *, key: str) -> Figure:
    """With as many clients as this measure of Everbeat has threads. Raises NotInstalled."""
    watch = Watch(servers.pids)
    samples = pgbench.samples(servers, scale, key)
    return figure(key, samples, subject=PGBENCH, store="postgresql", foreign_cores=watch.foreign_cores())


def figure(key: str, samples: list[float], **who: object) -> Figure:
    title, unit, better = TITLES[key]
    rounded = [round(sample, 4) for sample in samples]
    return Figure(key=key, title=title, unit=unit, better=better, samples=rounded, **who)  # type: ignore[arg-type]
