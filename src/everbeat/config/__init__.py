"""What can be set: values that are complete and checked from the moment they exist.

Every configuration object is frozen, and its constructor either succeeds or names every problem in one `ConfigError`.
A value left out is taken from the surroundings (variables, one file) and then from the default; see `surroundings.py`.
"""

from everbeat.config.app import AppConfig, QueueConfig
from everbeat.config.broker import PostgresConfig, SQLiteConfig, broker_from_url
from everbeat.config.effective import Effective, effective
from everbeat.config.recovery import RecoveryConfig
from everbeat.config.retry import RetryPolicy, to_policy

__all__ = [
    "AppConfig",
    "Effective",
    "PostgresConfig",
    "QueueConfig",
    "RecoveryConfig",
    "RetryPolicy",
    "SQLiteConfig",
    "broker_from_url",
    "effective",
    "to_policy",
]
