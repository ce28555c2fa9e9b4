"""Ends what was not started while it was good. Every worker looks; what one has ended the others do not find."""

from everbeat.config import RecoveryConfig
from everbeat.store.interface import Store


def end_expired(store: Store, config: RecoveryConfig) -> None:
    while store.expire(settle_us=config.check_interval_ms * 1000):
        continue
