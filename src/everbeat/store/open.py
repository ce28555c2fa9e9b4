"""Open the store that a configuration names."""

from pathlib import Path

from everbeat.clock import Clock
from everbeat.config import AppConfig, SQLiteConfig
from everbeat.errors import ConfigError
from everbeat.store.interface import Site, Store
from everbeat.store.upkeep import Maintenance

NO_DRIVER = "PostgreSQL needs its driver: pip install 'everbeat[postgres]'"


def open_store(config: AppConfig, *, create: bool = True, clock: Clock | None = None, patience: float = 30.0) -> Store:
    """`create=False` never makes a file or a table: for commands that only look. `clock` is for a store that has
    none of its own: a file."""
    broker, create = config.broker, create and config.auto_migrate
    if isinstance(broker, SQLiteConfig):
        from everbeat.store.sqlite.store import SQLiteStore

        return SQLiteStore(
            Path(broker.path), durability=broker.durability, file_mode=broker.file_mode, create=create, clock=clock,
            patience=patience,
        )  # fmt: skip
    _require_driver()
    from everbeat.store.postgres.store import PostgresStore

    return PostgresStore(broker.url, schema=broker.schema, create=create, patience=patience)


def site_of(config: AppConfig) -> Site:
    """Of a store that is perhaps not there, or can not be opened now."""
    broker = config.broker
    if isinstance(broker, SQLiteConfig):
        from everbeat.store.sqlite.site import SQLiteSite

        return SQLiteSite(Path(broker.path))
    from everbeat.store.postgres.site import PostgresSite

    return PostgresSite(broker.url, broker.schema)


def maintenance_of(config: AppConfig, *, patience: float = 30.0) -> Maintenance:
    """For work on the store as a whole. Opens nothing yet."""
    broker = config.broker
    if isinstance(broker, SQLiteConfig):
        from everbeat.store.sqlite.maintenance import SQLiteMaintenance

        return SQLiteMaintenance(
            Path(broker.path), durability=broker.durability, file_mode=broker.file_mode, patience=patience
        )
    _require_driver()
    from everbeat.store.postgres.maintenance import PostgresMaintenance

    return PostgresMaintenance(broker.url, broker.schema, patience=patience)


def _require_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise ConfigError(NO_DRIVER) from error
