"""Every measure by its key, in the order of a task's life, with the figure to reach."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from everbeat.bench import draining, flowing, idling, recovering, sending, waiting
from everbeat.bench.figures import Batched, Better
from everbeat.bench.place import Ground
from everbeat.bench.scale import Scale


@dataclass(frozen=True)
class Measure:
    key: str
    title: str
    unit: str
    target: str
    """The figure to reach, in words."""
    take: Callable[[Ground, float], list[float] | Batched]
    better: Better = "higher"
    least: Scale = Scale.SMALL
    """Measured from this scale on: a million rows are a million rows."""
    on_postgres: str | None = None
    """The figure to reach there, if it is another one."""
    only_on: str | None = None
    """The one kind of store that it makes sense on."""

    def target_on(self, store: str) -> str:
        return self.on_postgres if store == "postgresql" and self.on_postgres is not None else self.target


MEASURES = [
    Measure("enqueue.single", "single enqueue, one thread", "tasks/s", "", sending.single),
    Measure("enqueue.threads.4", "single enqueue, 4 threads", "tasks/s", "", sending.four_threads),
    Measure("enqueue.threads.8", "single enqueue, 8 threads", "tasks/s", "", sending.eight_threads),
    Measure("enqueue.threads.16", "single enqueue, 16 threads", "tasks/s", "at least 10,000",
            sending.sixteen_threads, on_postgres=""),
    Measure("enqueue.processes", "single enqueue, 4 processes", "tasks/s", "", sending.processes),
    Measure("enqueue.bulk", "bulk enqueue, one transaction", "tasks/s", "at least 100,000", sending.bulk,
            on_postgres="at least 50,000"),
    Measure("enqueue.unique", "bulk enqueue, each with a unique key", "tasks/s", "", sending.unique,
            on_postgres="at least 25,000"),
    Measure("drain.sync.single", "drain, process slots, one at a time", "tasks/s", "at least 2,000",
            draining.sync_single, on_postgres=""),
    Measure("drain.sync.frames", "drain, process slots, frames", "tasks/s", "at least 6,000", draining.sync_frames,
            on_postgres=""),
    Measure("drain.async", "drain, async, 1,000 slots", "tasks/s", "at least 12,000", draining.async_,
            on_postgres=""),
    Measure("drain.async-default", "drain, async, 100 slots (the default)", "tasks/s", "", draining.async_default),
    Measure("workflow.chain", "chain of 1,000 nodes, one after the other", "nodes/s", "at least 700", flowing.chain,
            on_postgres="at least 400"),
    Measure("workflow.fan", "10,000 nodes out and in again, of the rate of plain tasks", "%", "at least 50",
            flowing.fan_share),
    Measure("latency.pickup", "pickup by an idle worker", "ms", "p50 under 2 and p95 under 5", waiting.pickup,
            "lower"),
    Measure("latency.result", "enqueue to result", "ms", "p50 under 4", waiting.result, "lower"),
    Measure("death.child", "child death to restart", "ms", "p95 under 100", waiting.child_death, "lower"),
    Measure("death.worker", "kill -9 of a worker to restart on the same host", "ms", "p95 under 1,000",
            waiting.worker_death, "lower"),
    Measure("death.host", "kill -9 of a worker to restart on another host", "ms", "p95 under 5,000",
            waiting.host_death, "lower", only_on="postgresql"),
    Measure("recovery.10k", "10,000 orphans recovered", "s", "under 1", recovering.ten_thousand, "lower",
            on_postgres="under 2"),
    Measure("recovery.100k", "100,000 orphans recovered", "s", "", recovering.hundred_thousand, "lower",
            Scale.NORMAL),
    Measure("recovery.1m", "1,000,000 orphans recovered", "s", "under 30", recovering.million, "lower", Scale.FULL,
            on_postgres="under 60"),
    Measure("recovery.held-up", "longest enqueue while orphans are recovered", "ms", "under 200",
            recovering.held_up, "lower"),
    Measure("recovery.stale", "finding a silent worker among many RUNNING tasks", "ms", "p95 under 10",
            recovering.stale_workers, "lower"),
    Measure("recovery.start", "start of a worker, 10,000 tasks, half of them orphans", "s", "under 2",
            recovering.start_up, "lower"),
    Measure("recovery.integrity", "integrity check, for each GB", "s", "under 10", recovering.integrity, "lower",
            Scale.NORMAL),
    Measure("heartbeat.cost", "heartbeats of 1,000 running tasks", "% of a core", "under 1", recovering.heartbeats,
            "lower"),
    Measure("growth.0", "async drain, no ended task in the store", "tasks/s", "", draining.after_no_rows),
    Measure("growth.1m", "async drain, 1,000,000 ended tasks in the store", "tasks/s", "",
            draining.after_a_million, "higher", Scale.FULL),
    Measure("growth.5m", "async drain, 5,000,000 ended tasks in the store", "tasks/s", "",
            draining.after_five_million, "higher", Scale.FULL),
    Measure("growth.backlog", "async drain, the first of 1,000,000 that wait", "tasks/s", "",
            draining.before_a_million, "higher", Scale.FULL),
    Measure("idle.cpu", "idle worker: CPU", "% of a core", "under 1", idling.cpu, "lower"),
    Measure("idle.memory", "idle worker: memory (PSS)", "MB", "under 80", idling.memory, "lower"),
]  # fmt: skip


def matching(words: Iterable[str]) -> list[Measure]:
    """Those whose key is one of the words or begins with it; for a word that is no key, those whose title has it.

    All if there are no words."""
    wanted = [word.strip().lower() for word in words if word.strip()]
    found = {one.key for word in wanted for one in _matching(word)}
    return [one for one in MEASURES if not wanted or one.key in found]


def _matching(word: str) -> list[Measure]:
    by_key = [one for one in MEASURES if one.key == word or one.key.startswith(f"{word}.")]
    return by_key or [one for one in MEASURES if word in one.title.lower()]
