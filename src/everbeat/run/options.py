"""What a worker is told on its command line."""

from dataclasses import dataclass

from everbeat.decide.pace import DEEPEST


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    target: str
    processes: int
    async_slots: int | None = None
    """None: a hundred if the application has async tasks."""
    queues: tuple[str, ...] | None = None
    name: str | None = None
    imports: tuple[str, ...] = ()
    database_url: str | None = None
    burst: bool = False
    drain_timeout: float = 25.0
    frame_depth: int = DEEPEST
    log_level: str = "info"
    log_format: str = "text"
    http: tuple[str, int] | None = None
    """Where /livez, /readyz and /metrics are served."""

    @property
    def most_children(self) -> int:
        """At once: each process and the async one may have one beside it that runs a task alone or takes over, and one
        is for subscribers."""
        return 3 + 2 * max(1, self.processes)

    @property
    def application(self) -> str:
        """MODULE:APP, also where APP was left out: subscriptions are known by it."""
        return self.target if ":" in self.target else f"{self.target}:app"
