"""The peers: where they keep tasks, the settings they are measured with, and what they promise, in words.

What becomes of tasks after a kill -9 of their worker, with default settings, was watched for six minutes or more;
bench/crash watches for 70 s, with other settings and other faults, too.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    """Of the requirements file, and of the adapter: with_NAME.py."""
    package: str
    store: str
    """"sqlite", "postgresql" or "redis"."""
    kinds: tuple[str, ...]
    variants: dict[str, str]
    """Their names, and their settings in words. The first is what one gets without choosing."""
    runs_in: str
    finished_means: str
    after_kill: str
    size: int
    """How many no-ops are a drain at full scale; about some seconds."""
    note: str = ""

    @property
    def quick(self) -> str:
        """The settings that serve latency best."""
        return "fast" if "fast" in self.variants else next(iter(self.variants))


PEERS = [
    Peer(
        name="huey",
        package="huey",
        store="sqlite",
        kinds=("sync",),
        variants={
            "default": "1 thread, task returns nothing",
            "4 threads": "4 threads, task returns nothing",
            "results": "1 thread, result stored",
            "fsync off": "1 thread, task returns nothing, commits do not wait for the disk",
        },
        runs_in="threads of the consumer",
        finished_means="nothing is written; the row is deleted before the task runs (results: the result is stored)",
        after_kill="running tasks are lost for good, without a trace",
        size=4_000,
    ),
    Peer(
        name="pgqueuer",
        package="pgqueuer",
        store="postgresql",
        kinds=("async",),
        variants={"default": "batch size 10", "fast": "batch size 100", "batch 500": "batch size 500"},
        runs_in="the event loop of the worker",
        finished_means="row deleted and log row written, in batches",
        after_kill="run again after 25 to 40 s; a stalled loop has its tasks run twice; no limit for a task that kills",
        size=10_000,
    ),
    Peer(
        name="procrastinate",
        package="procrastinate",
        store="postgresql",
        kinds=("async", "sync"),
        variants={"default": "concurrency 1", "fast": "concurrency 10"},
        runs_in="the event loop; def in a thread",
        finished_means="row updated, durable",
        after_kill="stuck in doing for ever, unless one writes a periodic task for it",
        size=2_000,
    ),
    Peer(
        name="chancy",
        package="chancy",
        store="postgresql",
        kinds=("async",),
        variants={"fast": "async executor, concurrency 100, eager polling"},
        runs_in="the event loop (measured), threads or processes",
        finished_means="row updated in batches on a timer",
        after_kill="run again after 123 s, no trace of the crash",
        size=4_000,
    ),
    Peer(
        name="dbos",
        package="dbos",
        store="postgresql",
        kinds=("sync",),
        variants={
            "default": "no limit of concurrency, polls each second",
            "fast": "worker concurrency 20, polls every 50 ms",
        },
        runs_in="threads; async def on the event loop",
        finished_means="workflow row SUCCESS with the result, durable",
        after_kill="run again when a process with the same executor id starts; else stuck for ever",
        size=700,
    ),
    Peer(
        name="taskiq",
        package="taskiq-postgres",
        store="postgresql",
        kinds=("async",),
        variants={"default": "2 worker processes, results in PostgreSQL"},
        runs_in="the event loops of 2 processes",
        finished_means="result row stored",
        after_kill="stuck; what was sent while no worker listened is never picked up",
        size=2_000,
        note="sent while the worker runs: it never picks up a backlog",
    ),
    Peer(
        name="celery",
        package="celery",
        store="redis",
        kinds=("sync",),
        variants={"default": "2 processes", "fast": "2 processes, prefetch 64, no gossip, mingle and heartbeat"},
        runs_in="prefork child processes",
        finished_means="result stored in Redis, not durable",
        after_kill="running tasks are lost for good (acknowledged before they ran), prefetched ones stuck for an hour",
        size=2_000,
    ),
    Peer(
        name="dramatiq",
        package="dramatiq",
        store="redis",
        kinds=("sync",),
        variants={"default": "2 processes x 8 threads", "fast": "2 processes x 16 threads"},
        runs_in="threads of 2 processes",
        finished_means="message removed from Redis, not durable, no record",
        after_kill="stuck, prefetched ones too: not run again within 15 minutes",
        size=5_000,
    ),
    Peer(
        name="rq",
        package="rq",
        store="redis",
        kinds=("sync",),
        variants={"default": "a fork for each job", "fast": "SimpleWorker, no fork"},
        runs_in="a forked process for each job",
        finished_means="result stored in Redis, not durable",
        after_kill="stuck for 833 s, then failed; run again only with Retry",
        size=1_000,
    ),
]
