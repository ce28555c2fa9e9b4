"""Where tasks live: one SQLite file, or a PostgreSQL database.

A path is made absolute once, when the configuration is made: a later change of directory must not lead to another file.
Passwords never appear in `repr`, `str` or `location`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from everbeat.config import urls
from everbeat.config.catalogue import STORE
from everbeat.config.complete import Completion
from everbeat.config.rules import Mode, OneOf, Schema
from everbeat.config.setting import CODE, DEFAULT, Settings, section, setting
from everbeat.config.surroundings import look_around
from everbeat.config.urls import POSTGRES, SQLITE
from everbeat.errors import ConfigError
from everbeat.secrecy import located, masked

DEFAULT_PATH = "everbeat.db"
Durability = Literal["full", "normal"]
_DURABILITY: Durability = setting("full", OneOf(choices=("full", "normal")))
_FILE_MODE: int = setting(0o600, Mode())


@section("broker")
@dataclass(frozen=True, slots=True, init=False)
class SQLiteConfig(Settings):
    """A store in one file, for the processes of one machine."""

    path: Path
    """Absolute, whatever was given."""
    durability: Durability = _DURABILITY
    """What a returned `enqueue()` survives: "full" also power loss, "normal" the death of any process."""
    file_mode: int = _FILE_MODE
    """Permissions of the file, and of what stands beside it."""

    def __init__(self, path: str | Path, *, durability: Durability = _DURABILITY, file_mode: int = _FILE_MODE) -> None:
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "durability", durability)
        object.__setattr__(self, "file_mode", file_mode)
        completion = Completion(self)
        completion.add([urls.path_problem(path)])
        completion.finish()
        object.__setattr__(self, "path", urls.absolute(path))

    @property
    def url(self) -> str:
        """Absolute."""
        return f"{SQLITE}{self.path}"

    @property
    def location(self) -> str:
        """For people and logs."""
        return self.url

    def to_facts(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"path": str(self.path), "durability": self.durability, "file_mode": self.file_mode}


@section("broker")
@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresConfig(Settings):
    """A store in a PostgreSQL database, for workers on many machines. Needs `everbeat[postgres]`."""

    database_url: str = field(kw_only=False, repr=False)
    """Such as postgresql://USER@HOST/DATABASE. Its password is masked wherever it is shown."""
    schema: str | None = setting(None, Schema())
    """Of PostgreSQL, for the tables; left out: the search path of the connection."""

    def __post_init__(self) -> None:
        completion = Completion(self)
        completion.add([urls.postgres_problem(self.database_url)])
        completion.finish()

    def __repr__(self) -> str:
        return f"PostgresConfig(database_url={masked(self.database_url)!r}, schema={self.schema!r})"

    @property
    def url(self) -> str:
        """With the password: for the connection only."""
        return self.database_url

    @property
    def location(self) -> str:
        """For people and logs."""
        return located(self.database_url, self.schema)

    def to_facts(self) -> dict[str, Any]:
        """Plain JSON values, with the password: never for a log."""
        return {"database_url": self.database_url, "schema": self.schema}


BrokerConfig = SQLiteConfig | PostgresConfig


def broker_from_url(url: str, *, where: str | None = None) -> BrokerConfig:
    """sqlite:///relative, sqlite:////absolute or postgresql://... `where` is a flag or variable that gave it."""
    problem = urls.problem(url)
    if problem is not None:
        raise ConfigError(problem, subject=where or "database URL")
    if url.startswith(POSTGRES):
        return PostgresConfig(url).with_origins({"database_url": where or CODE})
    return SQLiteConfig(url.removeprefix(SQLITE)).with_origins({"path": where or CODE})


def moved(broker: BrokerConfig, url: str, *, where: str) -> BrokerConfig:
    """The store at that URL, with the other settings of this one where they apply."""
    there = broker_from_url(url, where=where)
    match broker, there:
        case SQLiteConfig(), SQLiteConfig():
            return broker.changed(where, path=there.path)
        case PostgresConfig(), PostgresConfig():
            return broker.changed(where, database_url=there.database_url)
    return there


def default_broker() -> BrokerConfig:
    """The store that the surroundings name, else a file in the working directory."""
    around = look_around()
    if around.problems:
        raise ConfigError(around.problems, subject="configuration")
    found = around.find(STORE)
    if found is None:
        return SQLiteConfig(DEFAULT_PATH).with_origins({"path": DEFAULT})
    if isinstance(found.value, Path):
        return SQLiteConfig(found.value).with_origins({"path": found.origin})
    return broker_from_url(found.value, where=found.origin)


def broker_from_facts(facts: dict[str, Any]) -> BrokerConfig:
    return PostgresConfig(**facts) if "database_url" in facts else SQLiteConfig(**facts)
