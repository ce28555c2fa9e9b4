"""Which store a command means: `--db`, else the store of `--app`, else EVERBEAT_DATABASE_URL, else ./everbeat.db."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

from everbeat.cli import application
from everbeat.cli.ends import NO_STORE, Refused
from everbeat.cli.grammar import Option
from everbeat.config import AppConfig, SQLiteConfig, broker_from_url
from everbeat.config.setting import DEFAULT
from everbeat.errors import StoreDamaged, StoreUnavailable
from everbeat.store.interface import Store
from everbeat.store.open import open_store, site_of

DATABASE_URL = "EVERBEAT_DATABASE_URL"
PATIENCE = 5.0
"""How long a command waits for a busy store."""

Db = Annotated[
    str | None,
    Option(
        "--db",
        metavar="URL",
        help="The store: sqlite:///relative.db, sqlite:////absolute.db or postgresql://USER@HOST/DATABASE.",
    ),
]
App = Annotated[
    str | None,
    Option(
        "--app",
        metavar="MODULE:APP",
        envvar="EVERBEAT_APP",
        help="Use the store of this application. It is imported in a process of its own.",
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print JSON, and nothing else, on stdout.")]


def config_for(db: str | None, app: str | None) -> AppConfig:
    if db is not None:
        return AppConfig(broker=broker_from_url(db, where="--db"))
    return AppConfig.from_facts(application.facts(app)) if app else AppConfig()


@contextmanager
def existing_store(db: str | None, app: str | None) -> Iterator[Store]:
    """The store, if there is one. Never creates it: a mistyped path must not look like an empty queue."""
    with existing(config_for(db, app)) as store:
        yield store


@contextmanager
def existing(config: AppConfig) -> Iterator[Store]:
    try:
        store = open_store(config, create=False, patience=PATIENCE)
    except StoreUnavailable as error:
        raise _with_advice(config, error) from error
    with closing(store):
        yield store


@contextmanager
def sound(config: AppConfig) -> Iterator[Store]:
    """The store, if it can be worked on. For one that is damaged: what a person should do about it."""
    try:
        store = open_store(config, create=False, patience=PATIENCE)
    except StoreDamaged as damage:
        from everbeat.run.startup import halted

        raise halted(site_of(config), damage) from damage
    with closing(store):
        yield store


def _with_advice(config: AppConfig, error: StoreUnavailable) -> Exception:
    """Nobody said which store, and there is none where one is looked for then: most likely another one is meant."""
    broker = config.broker
    if isinstance(broker, SQLiteConfig) and broker.origin("path") == DEFAULT and not os.path.exists(broker.path):
        return Refused(f"{error}. Say which one you mean: --db URL, --app MODULE:APP, or {DATABASE_URL}", code=NO_STORE)
    return error
