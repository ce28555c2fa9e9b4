"""Everbeat, on either store. Safe: the task may be repeated, and silence is noticed after ten seconds."""

import sys

from bench.crash import kit
from everbeat import AppConfig, Everbeat, RecoveryConfig, RetryPolicy

EARLY = RecoveryConfig(
    runner_heartbeat_interval_ms=2_000,
    claimer_heartbeat_interval_ms=2_000,
    running_stale_threshold_ms=10_000,
    claimed_stale_threshold_ms=10_000,
    check_interval_ms=1_000,
)
STATES = {"PENDING": "waiting", "CLAIMED": "held", "RUNNING": "held", "COMPLETED": "done"}
app = Everbeat(AppConfig(broker=kit.URL, recovery=EARLY if kit.IS_SAFE else RecoveryConfig()))


@app.task(retry=RetryPolicy(max_attempts=5) if kit.IS_SAFE else None)
def work(number: int, seconds: float, deed: str) -> str:
    return kit.body(number, seconds, deed)


def prepare() -> None:
    app.store.counts()


def send(number: int, seconds: float, deed: str) -> str:
    return work.enqueue(number, seconds, deed).id


def worker() -> list[str]:
    return [sys.executable, "-m", "everbeat", "worker", "start", f"{__name__}:app", "--processes", str(kit.SLOTS)]


def states(ids: list[str]) -> dict[str, str]:
    return {key: STATES.get(app.handle(key).status(), "failed") for key in ids}
