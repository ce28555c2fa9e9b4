"""A store with at least one row in every table, and workflows of every shape and in every state."""

from contextlib import closing

from tests.hostile import flows
from tests.hostile.rows import Hand, fill, something
from tests.words import register

from everbeat import Everbeat
from everbeat.config import AppConfig
from everbeat.store.open import open_store


def furnish(hand: Hand) -> None:
    config = AppConfig(broker=hand.broker)
    with closing(open_store(config)) as store, Everbeat(config) as app:
        register(store, "w0", beat_interval_ms=1_000)
        fill(store)
        flows.furnish(app, store, "w0")
    with hand.writing() as pen:
        for table, columns in hand.tables().items():
            if pen.rows(f"SELECT count(*) FROM {table}") == [(0,)]:
                assert pen.put(table, {one.name: something(one) for one in columns if not one.is_given})
