"""DBOS on PostgreSQL: DBOSClient sends; a process with a launched DBOS works: `python -m bench.peers.with_dbos`."""

import sys
import threading
import time

import psycopg
from dbos import DBOS, DBOSClient

from bench.peers import kit

QUEUE = {"default": {}, "fast": {"worker_concurrency": 20, "polling_interval_sec": 0.05}}[kit.VARIANT]


@DBOS.workflow(name="sync")
def sync_noop(a: int, b: int) -> int:
    kit.began()
    return a + b


@DBOS.workflow(name="stamp")
def stamp(path: str) -> None:
    kit.stamp(path)


def prepare() -> None:
    launch()
    DBOS.destroy()


def launch() -> None:
    DBOS(config={"name": "bench", "system_database_url": kit.URL, "log_level": "ERROR", "run_admin_server": False})
    DBOS.launch()
    DBOS.register_queue("bench", **QUEUE)


def send(kind: str, count: int) -> float:
    client = _client()
    began = time.perf_counter()
    for _ in range(count):
        client.enqueue({"queue_name": "bench", "workflow_name": "sync"}, 1, 2)
    return time.perf_counter() - began


def send_stamp(path: str) -> None:
    _client().enqueue({"queue_name": "bench", "workflow_name": "stamp"}, path)


def worker(kind: str) -> list[str]:
    return [sys.executable, "-m", "bench.peers.with_dbos"]


def finished(count: int) -> int:
    if not _connections:
        _connections.append(psycopg.connect(kit.URL, autocommit=True))
    query = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS' AND name = 'sync'"
    return _connections[0].execute(query).fetchone()[0]


def results(count: int) -> list[float]:
    samples = []
    for _ in range(min(count, 5)):
        sent = time.monotonic_ns()
        _client().enqueue({"queue_name": "bench", "workflow_name": "sync"}, 1, 2).get_result()
        samples.append((time.monotonic_ns() - sent) / 1e6)
    return samples


def _client() -> DBOSClient:
    if not _clients:
        _clients.append(DBOSClient(system_database_url=kit.URL))
    return _clients[0]


_clients: list[DBOSClient] = []
_connections: list["psycopg.Connection"] = []

if __name__ == "__main__":
    launch()
    threading.Event().wait()
