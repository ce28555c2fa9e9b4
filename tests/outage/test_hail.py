"""Everything at once: workers, their processes, the server, its backends and the lines to it are hit in turn."""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.crash.conftest import MakeYard
from tests.crash.yard import FAST, Worker, Yard
from tests.outage.proxy import Proxy
from tests.outage.test_server import kill_one_backend, restart, terminate_all
from tests.postgres import Cluster

from everbeat import StoreUnavailable, TaskStatus

TASKS = 480
KINDS = ("quick", "work_again", "a_quick", "quick_again", "work", "a_quick_again")
COMMITS = (b"SET status = 'RUNNING', fence = fence + 1", b"SET status = 'COMPLETED'", b"beat_seq = beat_seq + 1",
           b"lost_count = lost_count +")  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("HAIL", "1"))))
def test_nothing_is_lost_or_run_twice_while_workers_and_server_are_hit(
    make_yard: MakeYard, cluster: Cluster, proxy: Proxy, seed: int
) -> None:
    yard, chance = make_yard(**FAST), random.Random(seed)
    line = {"YARD_URL": proxy.url}
    workers = [yard.worker(ready=False, environment=line), yard.worker(environment=line)]
    ids = [task_id for name in KINDS for task_id in yard.send_many(name, [()] * (TASKS // len(KINDS)))]
    chance.shuffle(ids)
    blows: Counter[str] = Counter()

    def ended() -> int:
        workers[:] = [
            yard.worker(ready=False, environment=line) if w.process.poll() is not None else w for w in workers
        ]
        with suppress(StoreUnavailable):
            return sum(count.count for count in yard.store.counts() if count.status.is_terminal)
        return 0

    def hit() -> None:
        name = chance.choice(list(BLOWS))
        blows[name] += 1
        BLOWS[name](yard, cluster, chance.choice(workers), proxy, chance)

    for goal in range(30, len(ids), 30):
        yard.until(lambda goal=goal: ended() >= goal, f"{goal} have ended", timeout=120)
        hit()
    yard.until(lambda: ended() == len(ids), "all have ended", timeout=120)

    print(dict(blows))  # noqa: T201 - shown if the test fails
    assert {task.id for task in yard.tasks()} == set(ids)
    yard.audit(ids)
    codes = {task.error_code for task in yard.tasks() if task.status is TaskStatus.FAILED}
    assert codes <= {"WORKER_CRASHED", "NEIGHBOUR_CRASHED"}


def kill_a_child(yard: Yard, cluster: Cluster, worker: Worker, proxy: Proxy, chance: random.Random) -> None:
    with suppress(StopIteration, ProcessLookupError, IndexError):  # it is just being replaced
        os.kill(chance.choice(worker.slots), signal.SIGKILL)


def kill_the_worker(yard: Yard, cluster: Cluster, worker: Worker, proxy: Proxy, chance: random.Random) -> None:
    with suppress(StopIteration, ProcessLookupError):
        worker.kill_tree(children_first=chance.random() < 0.5)


def cut_a_commit(yard: Yard, cluster: Cluster, worker: Worker, proxy: Proxy, chance: random.Random) -> None:
    proxy.cut_commit(chance.choice(["before", "after"]), chance.choice(COMMITS))


BLOWS: dict[str, Callable[[Yard, Cluster, Worker, Proxy, random.Random], None]] = {
    "child": kill_a_child,
    "worker": kill_the_worker,
    "commit": cut_a_commit,
    "another commit": cut_a_commit,
    "restart": lambda yard, cluster, worker, proxy, chance: restart(cluster, yard),
    "backend": lambda yard, cluster, worker, proxy, chance: kill_one_backend(cluster, yard),
    "backends": lambda yard, cluster, worker, proxy, chance: terminate_all(cluster, yard),
}
