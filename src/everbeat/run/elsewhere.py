"""Refuse a SQLite store that another machine is using (PROTOCOL 17).

Ages and locks are those of one kernel. A worker that beats under another one can not be judged here, nor can it judge
us: each would take the other for the remains of an earlier boot. So before anything is entered, whoever seems to live
under another kernel is watched until it beats again, or until it should have.
"""

from collections.abc import Callable

from everbeat.clock import Clock
from everbeat.decide.liveness import gap_us, is_elsewhere
from everbeat.errors import StoreUnavailable
from everbeat.model.worker import WorkerInfo
from everbeat.report.log import Reporter
from everbeat.store.interface import Store

LOOK_SECONDS = 0.25


def refuse_other_machines(store: Store, clock: Clock, reporter: Reporter, pause: Callable[[float], bool]) -> None:
    """Raise if somebody beats under another kernel. `pause` waits, and says whether that is still wanted."""
    suspects = {worker.id: worker for worker in _elsewhere(store, clock)}
    if not suspects:
        return
    for suspect in suspects.values():
        reporter.warn("worker.elsewhere", worker=suspect.id, host=suspect.host.name, boot=suspect.host.boot_id,
                      waiting="to see whether it still beats")  # fmt: skip
    give_up = clock.mono_us() + max(gap_us(suspect.beat_interval_ms) for suspect in suspects.values())
    while clock.mono_us() < give_up and pause(LOOK_SECONDS):
        for worker in _elsewhere(store, clock):
            before = suspects.setdefault(worker.id, worker)
            if worker.last_beat_at != before.last_beat_at:
                raise StoreUnavailable(
                    f"{store.location} is in use by another machine: worker {worker.id} on {worker.host.name} has just "
                    f"beaten under another kernel (boot {worker.host.boot_id}). A SQLite store is for the workers of "
                    f"one machine. Nothing was changed. Stop that worker, or use PostgreSQL."
                )


def _elsewhere(store: Store, clock: Clock) -> list[WorkerInfo]:
    now, booted_at = clock.wall_us(), clock.wall_us() - clock.mono_us()
    return [
        worker for worker in store.workers(alive_only=True) if is_elsewhere(worker, now_us=now, booted_at_us=booted_at)
    ]
