"""What pgbench reaches: one INSERT per commit into Everbeat's own table, with so many clients."""

from contextlib import closing

from bench.aims import CLIENTS
from bench.limit.writes import ARGS, NAME
from bench.servers import Servers
from everbeat.config import AppConfig, broker_from_url
from everbeat.store.open import open_store

SAMPLES = 3
NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
INSERT = f"""
INSERT INTO everbeat_tasks (id, args, name, queue, priority, max_attempts, created_at, run_at)
VALUES (gen_random_uuid()::text, '{ARGS.decode()}'::bytea, '{NAME}', 'default', 100, 1, {NOW}, {NOW});
"""


def samples(servers: Servers, scale: float) -> dict[str, list[float]]:
    """By the key of the measure of Everbeat with as many threads."""
    url = servers.url("postgresql")
    with closing(open_store(AppConfig(broker=broker_from_url(url)))):
        clients = {key: int(key.rpartition(".")[2]) if key[-1].isdigit() else 1 for key in CLIENTS}
        return {
            key: [servers.pgbench(url, INSERT, clients=count, seconds=max(1, round(4 * scale))) for _ in range(SAMPLES)]
            for key, count in clients.items()
        }
