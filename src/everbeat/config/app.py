"""The whole configuration of an application, and its form as plain facts for a process that never imports user code."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from everbeat.config import checks
from everbeat.config.broker import BrokerConfig, PostgresConfig, SQLiteConfig, broker_from_facts, broker_from_url
from everbeat.config.recovery import RecoveryConfig
from everbeat.config.surroundings import default_broker
from everbeat.ids import name_problem

KIB, MIB = 1024, 1024 * 1024
MAX_PAYLOAD_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """A queue with limits. Queues need no declaration to be used."""

    name: str = field(kw_only=False)
    max_concurrency: int | None = None
    paused: bool = False

    def __post_init__(self) -> None:
        checks.raise_for(
            (
                name_problem(self.name, "queue"),
                checks.whole("max_concurrency", self.max_concurrency, 1, 100_000, optional=True),
                checks.flag("paused", self.paused),
            ),
            subject=f"QueueConfig({self.name!r})",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    broker: BrokerConfig = field(default_factory=default_broker)
    """Left out: EVERBEAT_DATABASE_URL, else `everbeat.db` in the directory where the process was started."""
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    queues: Sequence[QueueConfig] = ()
    """Kept as a tuple."""
    imports: Sequence[str] = ()
    """Modules that define tasks; a worker imports them. Kept as a tuple."""
    eager: bool = False
    """Run tasks at enqueue, for tests."""
    auto_migrate: bool = True
    """Create the tables in an empty store."""
    max_args_bytes: int = MAX_PAYLOAD_BYTES
    max_result_bytes: int = MAX_PAYLOAD_BYTES

    def __post_init__(self) -> None:
        if isinstance(self.broker, str):
            object.__setattr__(self, "broker", broker_from_url(self.broker))
        for listed in ("queues", "imports"):
            if not isinstance(getattr(self, listed), str):
                object.__setattr__(self, listed, tuple(getattr(self, listed)))
        checks.raise_for(
            (
                _kind("broker", self.broker, SQLiteConfig, PostgresConfig),
                _kind("recovery", self.recovery, RecoveryConfig),
                *_queue_problems(self.queues),
                *_import_problems(self.imports),
                "eager=True is not available in this version; run a worker instead" if self.eager else None,
                checks.flag("auto_migrate", self.auto_migrate),
                checks.whole("max_args_bytes", self.max_args_bytes, KIB, 512 * MIB),
                checks.whole("max_result_bytes", self.max_result_bytes, KIB, 512 * MIB),
            ),
            subject="AppConfig",
        )

    def to_facts(self) -> dict[str, Any]:
        """Plain JSON values. They hold the store's password: for a pipe between processes, never for a log."""
        return {
            "store_url": self.broker.url,
            "broker": self.broker.to_facts(),
            "recovery": self.recovery.to_facts(),
            "queues": [asdict(queue) for queue in self.queues],
            "imports": list(self.imports),
            "eager": self.eager,
            "auto_migrate": self.auto_migrate,
            "max_args_bytes": self.max_args_bytes,
            "max_result_bytes": self.max_result_bytes,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """What `to_facts` said. Facts about other things are ignored."""
        return cls(
            broker=broker_from_facts(facts["broker"]),
            recovery=RecoveryConfig(**facts["recovery"]),
            queues=[QueueConfig(**queue) for queue in facts["queues"]],
            imports=facts["imports"],
            eager=facts["eager"],
            auto_migrate=facts["auto_migrate"],
            max_args_bytes=facts["max_args_bytes"],
            max_result_bytes=facts["max_result_bytes"],
        )


def _kind(name: str, value: object, *kinds: type) -> str | None:
    if isinstance(value, kinds):
        return None
    return f"{name} must be a {' or '.join(kind.__name__ for kind in kinds)}, not {type(value).__name__}"


def _queue_problems(queues: Iterable[object]) -> Iterable[str | None]:
    seen: set[str] = set()
    for queue in queues:
        yield _kind("each of queues", queue, QueueConfig)
        if isinstance(queue, QueueConfig):
            yield f"queue {queue.name!r} is listed twice" if queue.name in seen else None
            seen.add(queue.name)


def _import_problems(imports: Iterable[object]) -> Iterable[str]:
    if isinstance(imports, str):
        yield f"imports must be a list of module names: [{imports!r}]"
        return
    for module in imports:
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            yield f"imports takes module names such as 'shop.tasks', not {module!r}"
