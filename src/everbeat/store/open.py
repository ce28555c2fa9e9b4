"""Open the store that a configuration names."""

from pathlib import Path

from everbeat.clock import Clock
from everbeat.config import AppConfig, SQLiteConfig
from everbeat.errors import ConfigError
from everbeat.store.interface import Maintenance, Site, Store


def open_store(config: AppConfig, *, create: bool = True, clock: Clock | None = None, patience: float = 30.0) -> Store:
    """`create=False` never makes a file: for commands that only look."""
    broker = _supported(config)
    from everbeat.store.sqlite.store import SQLiteStore

    return SQLiteStore(
        Path(broker.path),
        durability=broker.durability,
        file_mode=broker.file_mode,
        create=create and config.auto_migrate,
        clock=clock,
        patience=patience,
    )


def site_of(config: AppConfig) -> Site:
    """Of a store that is perhaps not there, or can not be opened now."""
    from everbeat.store.sqlite.site import SQLiteSite

    return SQLiteSite(Path(_supported(config).path))


def maintenance_of(config: AppConfig, *, patience: float = 30.0) -> Maintenance:
    """For work on the store as a whole. Opens nothing yet."""
    broker = _supported(config)
    from everbeat.store.sqlite.maintenance import SQLiteMaintenance

    return SQLiteMaintenance(
        Path(broker.path), durability=broker.durability, file_mode=broker.file_mode, patience=patience
    )


def _supported(config: AppConfig) -> SQLiteConfig:
    broker = config.broker
    if isinstance(broker, SQLiteConfig):
        return broker
    raise ConfigError("PostgreSQL is not supported yet by this version; use a sqlite:/// URL")
