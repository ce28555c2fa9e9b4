"""`everbeat metrics`, and `worker start --http` as a real process."""

import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.by_hand import Command, HandWorker, send, until

from everbeat.cli import given
from everbeat.report import metrics
from everbeat.store.interface import Store

Start = Callable[..., "subprocess.Popen[str]"]

NAMES = [
    "tasks",
    "queue_oldest_runnable_seconds",
    "quarantined_tasks",
    "workers",
    "workflows",
    "halted_workflows",
    "worker_deaths_total",
    "recoveries_total",
    "recovery_detection_seconds",
    "recovery_restart_seconds",
    "heartbeat_age_seconds",
    "writes_refused_total",
    "store_up",
    "degraded",
    "spooled_outcomes",
    "reaper_last_pass_timestamp_seconds",
    "flush_batch_size",
    "task_duration_seconds",
]

APP = """
import os, time
from everbeat import Everbeat

while not os.path.exists("imported"):
    time.sleep(0.01)
app = Everbeat("sqlite:///gated.db")

@app.task(name="waits")
def waits() -> None:
    while not os.path.exists("over"):
        time.sleep(0.01)

@app.task(name="quick")
def quick() -> None: ...
"""


def samples(text: str) -> dict[tuple[str, str], float]:
    """By name and labels, as they are written."""
    return {
        (sample.name, ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("NFR-008")
def test_every_metric_is_named_and_says_what_it_means(everbeat: Command, store: Store, url: str) -> None:
    ended = everbeat("metrics", "--db", url)

    assert ended.code == 0
    described = dict(re.findall(r"^# HELP (\S+) (.+)$", ended.out, re.MULTILINE))
    assert {f"everbeat_{name}" for name in NAMES} <= set(described)
    assert all(described.values())


@pytest.mark.proves("AC-015")
def test_facts_of_the_store_are_counted(everbeat: Command, store: Store, hand: HandWorker, url: str) -> None:
    send(store)
    send(store)
    hand.claim()
    store.declare_dead(hand.id, reason="gone", cause="proof")

    found = samples(everbeat("metrics", "--db", url).out)

    assert found["everbeat_tasks", "queue=default,status=PENDING"] == 1
    assert found["everbeat_tasks", "queue=default,status=RUNNING"] == 1
    assert found["everbeat_tasks", "queue=default,status=FAILED"] == 0
    assert found["everbeat_queue_oldest_runnable_seconds", "queue=default"] > 0
    assert found["everbeat_workers", "status=dead"] == 1
    assert found["everbeat_worker_deaths_total", "cause=proof"] == 1
    assert found["everbeat_worker_deaths_total", "cause=silence"] == 0
    assert found["everbeat_recovery_detection_seconds_count", ""] == 1
    assert found["everbeat_store_up", ""] == 1


def test_counters_are_there_before_they_count_so_that_the_first_increase_is_one(
    everbeat: Command, store: Store, hand: HandWorker, url: str
) -> None:
    before = samples(everbeat("metrics", "--db", url).out)
    send(store)
    hand.quarantine(hand.claim())

    after = samples(everbeat("metrics", "--db", url).out)

    counters = {sample for sample in after if sample[0].endswith("_total")}
    assert {sample for sample in before if sample[0].endswith("_total")} == counters
    assert before["everbeat_recoveries_total", "action=failed,cause=crashed"] == 0
    assert after["everbeat_recoveries_total", "action=failed,cause=crashed"] == 1


def test_tasks_that_could_not_be_recovered_make_it_degraded(everbeat: Command, store: Store, url: str) -> None:
    assert samples(everbeat("metrics", "--db", url).out)["everbeat_degraded", ""] == 0

    store.note_degraded("1 task could not be recovered")

    assert samples(everbeat("metrics", "--db", url).out)["everbeat_degraded", ""] == 1


def test_what_only_a_worker_knows_has_no_value_here(everbeat: Command, store: Store, url: str) -> None:
    found = samples(everbeat("metrics", "--db", url).out)

    assert not any(name.startswith(("everbeat_spooled", "everbeat_flush", "everbeat_task_dur")) for name, _ in found)


def test_as_json_it_is_one_object(everbeat: Command, store: Store, url: str) -> None:
    found = everbeat("metrics", "--db", url, "--json").json

    assert found["everbeat_store_up"] == [{"name": "everbeat_store_up", "labels": {}, "value": 1.0}]


def test_as_json_each_metric_has_the_name_it_has_in_the_text(everbeat: Command, store: Store, url: str) -> None:
    said = everbeat("metrics", "--db", url).out

    found = everbeat("metrics", "--db", url, "--json").json

    assert set(found) == {line.split()[2] for line in said.splitlines() if line.startswith("# TYPE")}
    assert "everbeat_recoveries_total" in found


def test_without_a_store_there_is_nothing_to_count(everbeat: Command) -> None:
    assert everbeat("metrics", "--db", "sqlite:///nowhere.db").code == 3


def test_while_the_store_can_not_be_read_nothing_of_it_has_a_value() -> None:
    found = samples(metrics.text(None, None, is_up=False).decode())

    assert found == {("everbeat_store_up", ""): 0.0}


# -- over http --------------------------------------------------------------------------------------------------------


class Served:
    def __init__(self, worker: "subprocess.Popen[str]") -> None:
        assert worker.stdout is not None
        self.worker, self.lines = worker, worker.stdout
        line = next(line for line in self.lines if "http.listening" in line)
        self.address = line.strip().rpartition("=")[2]

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def until_ready(self) -> None:
        assert any(line == "ready\n" for line in self.lines)


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    (tmp_path / "gated.py").write_text(APP)
    return tmp_path


def test_a_worker_is_alive_from_the_start_and_ready_from_its_recovery_to_its_end(
    started: Start, everbeat: Command, gated: Path
) -> None:
    served = Served(started("worker", "start", "gated:app", "--processes", "1", "--http", "127.0.0.1:0"))
    assert served.address.startswith("127.0.0.1:")
    assert served.ask("/livez") == (200, "starting\n")
    assert served.ask("/readyz")[0] == 503

    (gated / "imported").touch()
    served.until_ready()
    assert served.ask("/readyz") == (200, "ready\n")
    assert served.ask("/livez") == (200, "alive\n")

    task = everbeat("task", "enqueue", "waits", "--app", "gated:app", "--json").json["id"]
    until(lambda: everbeat("task", "show", task, "--json", "--app", "gated:app").json["status"] == "RUNNING")
    served.worker.send_signal(signal.SIGTERM)
    until(lambda: served.ask("/readyz") == (503, "not ready: stopping\n"))
    assert served.ask("/livez")[0] == 200
    (gated / "over").touch()
    assert served.worker.wait(30) == 0


def test_metrics_of_a_worker_have_the_facts_of_the_store_and_its_own(
    started: Start, everbeat: Command, gated: Path
) -> None:
    (gated / "imported").touch()
    served = Served(started("worker", "start", "gated:app", "--processes", "1", "--http", "0"))
    served.until_ready()
    everbeat("task", "enqueue", "quick", "--app", "gated:app")

    def found() -> dict[tuple[str, str], float]:
        return samples(served.ask("/metrics")[1])

    until(lambda: found().get(("everbeat_tasks", "queue=default,status=COMPLETED")) == 1)
    seen = found()
    assert seen["everbeat_task_duration_seconds_count", "name=quick"] == 1
    assert seen["everbeat_flush_batch_size_count", ""] >= 1
    assert seen["everbeat_spooled_outcomes", ""] == 0
    assert seen["everbeat_store_up", ""] == 1
    assert seen["everbeat_workers", "status=alive"] == 1
    assert seen["everbeat_heartbeat_age_seconds", ""] < 60
    until(lambda: ("everbeat_reaper_last_pass_timestamp_seconds", "") in found())


@pytest.mark.parametrize("address", ["here", "127.0.0.1:99999", "[::1:80", "127.0.0.1:-1"])
def test_an_address_that_is_none_is_a_usage_error(everbeat: Command, shop: Path, address: str) -> None:
    assert everbeat("worker", "start", "shop:app", "--http", address).code == 2


@pytest.mark.parametrize("words", ["8080", ":8080"])
def test_a_port_alone_is_on_this_machine_only(words: str) -> None:
    assert given.address(words) == ("127.0.0.1", 8080)


def test_an_address_that_is_taken_is_said_and_nothing_is_started(started: Start, process: Command, shop: Path) -> None:
    served = Served(started("worker", "start", "shop:app", "--processes", "1", "--http", "0"))

    ended = process("worker", "start", "shop:app", "--processes", "1", "--http", served.address)

    assert ended.code == 1
    assert f"--http: can not listen on {served.address}" in ended.err
    assert ended.out == ""
