"""Where tasks live: one SQLite file, or a PostgreSQL database.

A path is made absolute once, when the configuration is made: a later change of directory must not lead to another file.
Passwords never appear in `repr`, `str` or `location`.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from everbeat.config import checks
from everbeat.errors import ConfigError

SQLITE = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")
MASK = "***"
_USER_SECRET = re.compile(r"(://[^:/@]*:).*@", re.DOTALL)
_QUERY_SECRET = re.compile(r"([?&](?:ssl)?password=)[^&#]*", re.IGNORECASE)
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True, init=False)
class SQLiteConfig:
    path: Path
    """Absolute, whatever was given."""
    durability: Literal["full", "normal"]
    """What a returned `enqueue()` survives: "full" also power loss, "normal" the death of any process."""
    file_mode: int

    def __init__(
        self, path: str | Path, *, durability: Literal["full", "normal"] = "full", file_mode: int = 0o600
    ) -> None:
        checks.raise_for(
            (
                _path_problem(path),
                checks.one_of("durability", durability, ("full", "normal")),
                _mode_problem(file_mode),
            ),
            subject="SQLiteConfig",
        )
        object.__setattr__(self, "path", Path(os.path.abspath(Path(path).expanduser())))
        object.__setattr__(self, "durability", durability)
        object.__setattr__(self, "file_mode", file_mode)

    @property
    def url(self) -> str:
        return f"{SQLITE}{self.path}"

    @property
    def location(self) -> str:
        """For people and logs."""
        return self.url

    def to_facts(self) -> dict[str, Any]:
        return {"path": str(self.path), "durability": self.durability, "file_mode": self.file_mode}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresConfig:
    database_url: str = field(kw_only=False, repr=False)
    schema: str | None = None

    def __post_init__(self) -> None:
        checks.raise_for(
            (_postgres_problem(self.database_url), _schema_problem(self.schema)),
            subject="PostgresConfig",
        )

    def __repr__(self) -> str:
        return f"PostgresConfig(database_url={self.location!r}, schema={self.schema!r})"

    @property
    def url(self) -> str:
        """With the password: for the connection only."""
        return self.database_url

    @property
    def location(self) -> str:
        """For people and logs."""
        return masked(self.database_url)

    def to_facts(self) -> dict[str, Any]:
        return {"database_url": self.database_url, "schema": self.schema}


BrokerConfig = SQLiteConfig | PostgresConfig


def broker_from_url(url: str, *, where: str = "database URL") -> BrokerConfig:
    """sqlite:///relative, sqlite:////absolute or postgresql://..."""
    if url.startswith(POSTGRES):
        return PostgresConfig(url)
    if url.startswith(SQLITE):
        if "?" in url:
            raise ConfigError("options can not be given in a sqlite URL; use SQLiteConfig(path, ...)", subject=where)
        return SQLiteConfig(url.removeprefix(SQLITE))
    raise ConfigError(
        f"{masked(url)!r} is not a store; use sqlite:///relative/path.db, sqlite:////absolute/path.db or postgresql://...",
        subject=where,
    )


def broker_from_facts(facts: dict[str, Any]) -> BrokerConfig:
    return PostgresConfig(**facts) if "database_url" in facts else SQLiteConfig(**facts)


def masked(url: str) -> str:
    """The URL with every password replaced; rather too much than too little where the URL is not well formed."""
    return _QUERY_SECRET.sub(rf"\1{MASK}", _USER_SECRET.sub(rf"\1{MASK}@", url))


def _path_problem(path: object) -> str | None:
    if not isinstance(path, str | os.PathLike):
        return f"path must be a path, not {path!r}"
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        return f"path {path!r} does not name a file"
    if ":memory:" in text or text.startswith("file:"):
        return "a database in memory is private to one connection and lost with it; give the path of a file"
    if text.endswith("/") or text.startswith(("sqlite:", "postgres")):
        return f"path {text!r} does not name a file; a URL goes to Everbeat(url)"
    return None


def _mode_problem(mode: object) -> str | None:
    if isinstance(mode, int) and not isinstance(mode, bool) and 0 <= mode <= 0o777 and mode & 0o600 == 0o600:
        return None
    shown = oct(mode) if isinstance(mode, int) else repr(mode)
    return f"file_mode must be permission bits that let the owner read and write, such as 0o600 or 0o660, not {shown}"


def _postgres_problem(url: object) -> str | None:
    if not isinstance(url, str) or not url.startswith(POSTGRES):
        shown = masked(url) if isinstance(url, str) else url
        return f"database_url must start with postgresql://, not {shown!r}"
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        return f"database_url {masked(url)!r} can not be read: {error}"
    return None


def _schema_problem(schema: object) -> str | None:
    if schema is None or (isinstance(schema, str) and _SCHEMA.fullmatch(schema)):
        return None
    return f"schema must be a plain PostgreSQL identifier of at most 63 characters, not {schema!r}"
