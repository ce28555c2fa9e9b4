"""DBOS on PostgreSQL: workflows sent by DBOSClient to processes with a launched DBOS. Safe: each place has an executor
id of its own, which who is started again in it has again; that is what recovers without their Conductor."""

import os
import sys
import threading

import psycopg
from dbos import DBOS, DBOSClient

from bench.crash import kit

STATES = {"ENQUEUED": "waiting", "DELAYED": "waiting", "PENDING": "held", "SUCCESS": "done"}


@DBOS.workflow(name="work")
def work(number: int, seconds: float, deed: str) -> str:
    return kit.body(number, seconds, deed)


def launch() -> None:
    if kit.IS_SAFE and kit.WORKER:
        os.environ["DBOS__VMID"] = kit.WORKER
    DBOS(config={"name": "crash", "system_database_url": kit.URL, "log_level": "ERROR", "run_admin_server": False})
    DBOS.launch()
    DBOS.register_queue("work", worker_concurrency=kit.SLOTS)


def prepare() -> None:
    launch()
    DBOS.destroy()


def send(number: int, seconds: float, deed: str) -> str:
    if not _clients:
        _clients.append(DBOSClient(system_database_url=kit.URL))
    call = {"queue_name": "work", "workflow_name": "work"}
    return str(_clients[0].enqueue(call, number, seconds, deed).get_workflow_id())


def worker() -> list[str]:
    return [sys.executable, "-m", __name__]


def states(ids: list[str]) -> dict[str, str]:
    with psycopg.connect(kit.URL) as connection:
        rows = connection.execute("SELECT workflow_uuid, status FROM dbos.workflow_status").fetchall()
    return {key: STATES.get(status, "failed") for key, status in rows}


_clients: list[DBOSClient] = []

if __name__ == "__main__":
    launch()
    threading.Event().wait()
