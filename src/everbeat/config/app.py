"""The whole configuration of an application, and its form as plain facts for a process that never imports user code."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from everbeat.config import checks
from everbeat.config.broker import (
    BrokerConfig,
    PostgresConfig,
    SQLiteConfig,
    broker_from_facts,
    broker_from_url,
    default_broker,
    moved,
)
from everbeat.config.catalogue import suggestion
from everbeat.config.complete import Completion
from everbeat.config.recovery import RecoveryConfig
from everbeat.config.rules import Flag, Modules, Names, Nested, Rule, Whole
from everbeat.config.setting import Settings, nested, section, setting, settings_of
from everbeat.errors import ConfigError
from everbeat.ids import name_problem

KIB, MIB = 1024, 1024 * 1024
MAX_PAYLOAD_BYTES = 16 * MIB
_PAYLOAD = Whole(low=KIB, high=512 * MIB, unit="bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """A queue with limits. Queues need no declaration to be used."""

    name: str = field(kw_only=False)
    max_concurrency: int | None = None
    """How many of its tasks may be claimed or running at once, in all workers together. None: no limit. Written by each
    worker that starts with this configuration, so the newest one counts; left as it is by those that do not name the
    queue."""
    paused: bool = False
    """Take tasks, but start none. Left out again, it ends with the next worker that starts; a pause by `everbeat queue
    pause` does not, it waits for `resume`."""

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
class Queues(Rule):
    """In a file: tables [queues.NAME], or a list of tables with a name."""

    def problems(self, name: str, value: object) -> list[str]:
        if not isinstance(value, tuple):
            return [f"{name} must be a list of QueueConfig; in a file, tables such as [queues.mail]; not {value!r}"]
        found: list[str] = []
        seen: set[str] = set()
        for queue in value:
            match queue:
                case QueueConfig() if queue.name in seen:
                    found.append(f"queue {queue.name!r} is listed twice")
                case QueueConfig():
                    seen.add(queue.name)
                case ConfigError():
                    found += [f"{name}: {queue.subject}: {problem}" for problem in queue.problems]
                case _:
                    found.append(f"each of {name} must be a QueueConfig, not {type(queue).__name__}")
        return found

    def from_file(self, value: object) -> object:
        match value:
            case Mapping():
                return tuple(_queue_from_file({"name": name}, table) for name, table in value.items())
            case list():
                return tuple(_queue_from_file({}, table) for table in value)
        return value

    @property
    def words(self) -> str:
        return "tables [queues.NAME]"


def _queue_from_file(named: dict[str, Any], table: object) -> object:
    """The queue, or what is wrong with it."""
    if not isinstance(table, Mapping):
        return table
    known = {field.name for field in fields(QueueConfig)}
    problems = [f"{key} is no setting; {suggestion(str(key), known)}" for key in table if key not in known]
    queue = {**table, **named}
    if "name" not in queue:
        return ConfigError([*problems, "a name is missing"], subject="a queue")
    try:
        made = QueueConfig(**{key: value for key, value in queue.items() if key in known})
    except ConfigError as error:
        problems += error.problems
    return ConfigError(problems, subject=f"queue {queue['name']!r}") if problems else made


@section("")
@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig(Settings):
    """All settings of an application: `Everbeat(AppConfig(...))`.

    What is left out comes from EVERBEAT_..., the configuration file, or the default. ConfigError says what is wrong.
    """

    broker: BrokerConfig = nested(default_broker, SQLiteConfig, PostgresConfig)
    """Left out: EVERBEAT_DATABASE_URL, else the file, else `everbeat.db` where the process was started."""
    recovery: RecoveryConfig = nested(RecoveryConfig, RecoveryConfig)
    queues: Sequence[QueueConfig] = setting((), Queues())
    """Queues with limits. Kept as a tuple."""
    imports: Sequence[str] = setting((), Modules())
    """Modules that define tasks; a worker imports them. Kept as a tuple."""
    eager: bool = setting(False, Flag())
    """Run tasks at enqueue, in this process and on a store that is thrown away: for tests."""
    auto_migrate: bool = setting(True, Flag())
    """Create the tables in an empty store."""
    max_args_bytes: int = setting(MAX_PAYLOAD_BYTES, _PAYLOAD)
    """The largest arguments of a task."""
    max_result_bytes: int = setting(MAX_PAYLOAD_BYTES, _PAYLOAD)
    """The largest result of a task."""
    unknown_task_timeout_ms: int | None = setting(3_600_000, Whole(low=1_000, high=10**10, unit="ms", optional=True))
    """A task whose name no running worker has known for so long fails with UNKNOWN_TASK. None: it waits for ever."""
    max_tasks_per_child: int | None = setting(None, Whole(low=1, high=10**9, optional=True))
    """A process of a worker is replaced after so many tasks."""
    max_memory_per_child_mb: int | None = setting(None, Whole(low=1, high=MIB, unit="MiB", optional=True))
    """A process of a worker is replaced after a task that leaves it larger than this (resident memory)."""
    redact: Sequence[str] = setting((), Names())
    """Names of arguments, or of fields inside them, whose values are replaced in errors before they are stored."""

    def __post_init__(self) -> None:
        if isinstance(self.broker, str):
            object.__setattr__(self, "broker", broker_from_url(self.broker))
        for listed in ("queues", "imports", "redact"):
            value = getattr(self, listed)
            if isinstance(value, Iterable) and not isinstance(value, str):
                object.__setattr__(self, listed, tuple(value))
        Completion(self).finish()

    def at(self, url: str, *, where: str) -> Self:
        """The same on another store, which a flag named."""
        return self.changed(where, broker=moved(self.broker, url, where=where))

    def to_facts(self) -> dict[str, Any]:
        """Plain JSON values. They hold the store's password: for a pipe between processes, never for a log."""
        return {
            "store_url": self.broker.url,
            "broker": self.broker.to_facts(),
            "recovery": self.recovery.to_facts(),
            "queues": [asdict(queue) for queue in self.queues],
            **{name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in _plain()},
            "origins": {
                "": dict(self.origins),
                "broker": dict(self.broker.origins),
                "recovery": dict(self.recovery.origins),
            },
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """What `to_facts` said. Facts about other things are ignored."""
        origins = facts["origins"]
        return cls(
            broker=broker_from_facts(facts["broker"]).with_origins(origins["broker"]),
            recovery=RecoveryConfig(**facts["recovery"]).with_origins(origins["recovery"]),
            queues=[QueueConfig(**queue) for queue in facts["queues"]],
            **{name: facts[name] for name in _plain()},
        ).with_origins(origins[""])


def _plain() -> list[str]:
    """Settings whose values are facts already, or tuples of such."""
    return [field.name for field, left in settings_of(AppConfig) if not isinstance(left.rule, Nested | Queues)]
