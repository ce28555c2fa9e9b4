"""What pgbench reaches: one INSERT per commit into Everbeat's own table, with so many clients.

Ids sort by time, as Everbeat's do, where the server can make such: 18 and later.
"""

from contextlib import closing

from bench.limit.writes import ARGS, NAME
from bench.servers import Servers
from everbeat.config import AppConfig, broker_from_url
from everbeat.store.open import open_store

SAMPLES = 2
NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
INSERT = f"""
INSERT INTO everbeat_tasks (id, args, name, queue, priority, max_attempts, created_at, run_at)
VALUES ({{id}}::text, '{ARGS}'::bytea, '{NAME}', 'default', 100, 1, {NOW}, {NOW});
"""
ORDERED_SINCE = 18


def samples(servers: Servers, scale: float, key: str) -> list[float]:
    """With as many clients as the measure of Everbeat with this key has threads."""
    url = servers.url("postgresql")
    insert = INSERT.replace("{id}", _id(servers.version("postgresql")))
    clients = int(key.rpartition(".")[2]) if key[-1].isdigit() else 1
    with closing(open_store(AppConfig(broker=broker_from_url(url)))):
        seconds = max(1, round(4 * scale))
        return [servers.pgbench(url, insert, clients=clients, seconds=seconds) for _ in range(SAMPLES)]


def _id(version: str) -> str:
    """What makes one, by what "PostgreSQL 18.4" can."""
    return "uuidv7()" if int(version.split()[1].split(".")[0]) >= ORDERED_SINCE else "gen_random_uuid()"
