"""What the surroundings of the process say where the code says nothing.

Configuration objects ask here for the default of a field, so a value in the code always wins, and a value from outside
is checked by the same rules. The only place that reads the environment.
"""

import os

from everbeat.config.broker import BrokerConfig, SQLiteConfig, broker_from_url

DATABASE_URL = "EVERBEAT_DATABASE_URL"
DEFAULT_PATH = "everbeat.db"


def default_broker() -> BrokerConfig:
    url = os.environ.get(DATABASE_URL)
    return broker_from_url(url, where=DATABASE_URL) if url else SQLiteConfig(DEFAULT_PATH)
