"""What is tried, and with which settings, in words."""

from dataclasses import dataclass

SAFE_REDIS = "redis with a log"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    name: str
    """For people."""
    adapter: str
    """with_ADAPTER.py; for peers also the name of the environment."""
    package: str
    store: str
    """"sqlite", "postgresql" or "redis"."""
    variants: dict[str, str]
    """Their names, "default" and "safe", and their settings."""
    notices: str
    """How it comes to know of a dead worker when nothing is set, as its documentation or source says."""
    has_processes: bool
    """Whether a task runs in a process that is not the worker itself, in the default variant."""
    safe_has_processes: bool | None = None

    @property
    def key(self) -> str:
        """Of its samples, and of who is asked for it."""
        return self.adapter if self.is_peer else f"{self.adapter}-{self.store}"

    @property
    def is_peer(self) -> bool:
        return self.adapter != "everbeat"

    def server(self, variant: str) -> str | None:
        """The kind of server that its store needs."""
        if self.store == "sqlite":
            return None
        return SAFE_REDIS if self.store == "redis" and variant == "safe" else self.store

    def runs_in_processes(self, variant: str) -> bool:
        if variant == "safe" and self.safe_has_processes is not None:
            return self.safe_has_processes
        return self.has_processes


def _everbeat(store: str, name: str) -> System:
    return System(
        name=f"Everbeat, {name}",
        adapter="everbeat",
        package="everbeat",
        store=store,
        variants={
            "default": "the task has no retry policy: one attempt",
            "safe": "RetryPolicy(max_attempts=5); beats every 2 s, silence counts after 10 s",
        },
        notices="process and worker on the same host: at once, by proof; silence: 300 s",
        has_processes=True,
    )


SYSTEMS = [
    _everbeat("sqlite", "SQLite"),
    _everbeat("postgresql", "PostgreSQL"),
    System(
        name="huey",
        adapter="huey",
        package="huey",
        store="sqlite",
        variants={"default": "4 threads", "safe": "4 processes, retries=3"},
        notices="never: a task leaves the store when it is taken",
        has_processes=False,
        safe_has_processes=True,
    ),
    System(
        name="pgqueuer",
        adapter="pgqueuer",
        package="pgqueuer",
        store="postgresql",
        variants={
            "default": "4 at once, batches of 2",
            "safe": "the same, heartbeat timeout 5 s, dequeue timeout 1 s, restart on failure",
        },
        notices="heartbeat of the job: 30 s",
        has_processes=False,
    ),
    System(
        name="procrastinate",
        adapter="procrastinate",
        package="procrastinate",
        store="postgresql",
        variants={
            "default": "concurrency 4",
            "safe": "the same, its recipe for stalled jobs every 2 s, heartbeat 1 s, stalled after 5 s",
        },
        notices="never, unless one writes a periodic task (documented recipe)",
        has_processes=False,
    ),
    System(
        name="chancy",
        adapter="chancy",
        package="chancy",
        store="postgresql",
        variants={
            "default": "process executor, concurrency 4",
            "safe": "the same, max_attempts=3, heartbeat 1 s / 3 s, recovery each second, leader 1 s / 3 s",
        },
        notices="heartbeat of the worker: 90 s, looked at every 60 s by a leader",
        has_processes=True,
    ),
    System(
        name="dbos",
        adapter="dbos",
        package="dbos",
        store="postgresql",
        variants={
            "default": "worker concurrency 4, every worker has the default executor id",
            "safe": "the same, an executor id for each place, the same again after a restart",
        },
        notices="when a process with the same executor id starts",
        has_processes=False,
    ),
    System(
        name="taskiq-postgres",
        adapter="taskiq",
        package="taskiq-postgres",
        store="postgresql",
        variants={"default": "2 processes, 2 at once in each, acknowledged when the result is saved"},
        notices="never",
        has_processes=True,
    ),
    System(
        name="celery",
        adapter="celery",
        package="celery",
        store="redis",
        variants={
            "default": "4 prefork processes, stock Redis",
            "safe": "the same, acks_late, reject_on_worker_lost, prefetch 1, results retried, visibility timeout 20 s "
            "looked at each second, Redis with appendonly",
        },
        notices="never (acknowledged before it runs); prefetched ones by the visibility timeout, 3600 s",
        has_processes=True,
    ),
    System(
        name="dramatiq",
        adapter="dramatiq",
        package="dramatiq",
        store="redis",
        variants={
            "default": "2 processes x 2 threads, results kept, stock Redis",
            "safe": "the same, heartbeat timeout 5 s, maintenance with every command, Redis with appendonly",
        },
        notices="heartbeat 60 s, looked at by chance with 0.1 % of the commands",
        has_processes=True,
    ),
    System(
        name="rq",
        adapter="rq",
        package="rq",
        store="redis",
        variants={
            "default": "a pool of 4 workers that fork for each job, stock Redis",
            "safe": "the same, Retry(max=3), maintenance and monitoring each second, worker TTL 20 s, Redis with "
            "appendonly",
        },
        notices="heartbeat of the job 90 s, looked at when an idle worker wakes, up to 10 min",
        has_processes=True,
    ),
]
