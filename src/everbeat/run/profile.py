"""Who a worker is under one id: what follows from its options and from what its application says of itself."""

import json
import secrets
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from everbeat import __version__
from everbeat.config import AppConfig
from everbeat.decide.lease import Lease
from everbeat.errors import ConfigError
from everbeat.model.worker import Host, LockIdentity, NewWorker, QueueSetting
from everbeat.run.lockfile import this_host
from everbeat.run.news import AppFacts
from everbeat.run.options import WorkerOptions
from everbeat.run.slot import Staffing

DEFAULT_ASYNC_SLOTS = 100


@dataclass(frozen=True)
class Profile:
    """Each one has an id of its own."""

    options: WorkerOptions
    facts: AppFacts
    host: Host = field(default_factory=this_host)
    mark: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def name(self) -> str:
        return self.options.name or socket.gethostname()

    @cached_property
    def worker_id(self) -> str:
        return f"{self.name}-{self.mark}"

    @cached_property
    def config(self) -> AppConfig:
        config = AppConfig.from_facts(json.loads(self.facts.config_json))
        if config.eager:
            raise ConfigError("eager is for tests: tasks run where they are sent, so a worker would never see one")
        return config

    @cached_property
    def events(self) -> tuple[str, ...]:
        """That the application subscribes to."""
        return tuple(json.loads(self.facts.config_json).get("events", ()))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tasks that it knows."""
        return (*self.facts.sync_names, *self.facts.async_names)

    @property
    def async_slots(self) -> int:
        if self.options.async_slots is not None:
            return self.options.async_slots
        return DEFAULT_ASYNC_SLOTS if self.facts.async_names else 0

    @property
    def beat_seconds(self) -> float:
        recovery = self.config.recovery
        return min(recovery.runner_heartbeat_interval_ms, recovery.claimer_heartbeat_interval_ms) / 1000

    @property
    def lease(self) -> Lease:
        length = self.config.recovery.exclusive_lease_ms
        lease = Lease(length * 1000)
        problem = lease.problem()
        if problem is not None:
            raise ConfigError(f"exclusive_lease_ms ({length}): {problem}")
        return lease

    @property
    def staffing(self) -> Staffing:
        queues, memory = self.options.queues, self.config.max_memory_per_child_mb
        return Staffing(
            processes=self.options.processes,
            async_slots=self.async_slots,
            sync_names=frozenset(self.facts.sync_names),
            async_names=frozenset(self.facts.async_names),
            queues=None if queues is None else frozenset(queues),
            frame_depth=self.options.frame_depth,
            max_tasks=self.config.max_tasks_per_child,
            max_memory=None if memory is None else memory << 20,
        )

    def as_registered(self, lock: LockIdentity, names: Sequence[str]) -> NewWorker:
        return NewWorker(
            id=self.worker_id,
            name=self.name,
            host=self.host,
            lock=lock,
            queues=self.options.queues,
            task_names=tuple(names),
            processes=self.options.processes,
            async_slots=self.async_slots,
            beat_interval_ms=round(self.beat_seconds * 1000),
            exclusive_lease_ms=self.config.recovery.exclusive_lease_ms,
            version=__version__,
            settings=tuple(QueueSetting(**asdict(queue)) for queue in self.config.queues),
        )
