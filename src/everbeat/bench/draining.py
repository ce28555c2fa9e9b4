"""Measures of working: tasks per second, from the first start to the last end as the store has them.

Completion counts when it is committed. Growth: the same with many ended tasks in the store, or many that wait. What the
database does because millions of rows have just been written (autovacuum, a checkpoint) is done before: it lasts as
long as a measure, and in a store that has grown over weeks it is long past.
"""

import signal

from everbeat.bench.place import Ground, Place, until
from everbeat.store import filling

ASYNC_SLOTS = "1000"
"""As many tasks at once as the largest batches of others are."""


def sync_single(ground: Ground, scale: float) -> list[float]:
    """One task at a time in each process slot: what tasks get that are not known to be short."""
    return _drained(ground, round(4_000 * scale), "noop", "--frame-depth", "1")


def sync_frames(ground: Ground, scale: float) -> list[float]:
    """The default: short tasks go to a process several at a time."""
    return _drained(ground, round(30_000 * scale), "noop")


def async_default(ground: Ground, scale: float) -> list[float]:
    """A hundred at once, which is what one gets without asking."""
    return _drained(ground, round(30_000 * scale), "async_noop")


def async_(ground: Ground, scale: float) -> list[float]:
    return _drained(ground, round(30_000 * scale), "async_noop", "--async-slots", ASYNC_SLOTS)


def after_no_rows(ground: Ground, scale: float) -> list[float]:
    return _after(ground, scale, ended=0)


def after_a_million(ground: Ground, scale: float) -> list[float]:
    return _after(ground, scale, ended=1_000_000)


def after_five_million(ground: Ground, scale: float) -> list[float]:
    return _after(ground, scale, ended=5_000_000)


def before_a_million(ground: Ground, scale: float) -> list[float]:
    """The first tasks of a backlog of a million."""
    wanted = round(30_000 * scale)
    with ground.place() as place:
        filling.fill_ready(place.store, 1_000_000, name=place.works.async_noop.name)
        ground.settle(place)
        return [_work_for_a_while(place, wanted) for _ in range(3)]


def _after(ground: Ground, scale: float, *, ended: int) -> list[float]:
    with ground.place() as place:
        filling.fill_ended(place.store, ended, name=place.works.async_noop.name)
        ground.settle(place)
        return [_drain(place, round(30_000 * scale), "async_noop", "--async-slots", ASYNC_SLOTS) for _ in range(3)]


def _drained(ground: Ground, count: int, name: str, *words: str) -> list[float]:
    samples = []
    for _ in range(3):
        with ground.place() as place:
            samples.append(_drain(place, count, name, *words))
    return samples


def _drain(place: Place, count: int, name: str, *words: str) -> float:
    since = place.now_us()
    getattr(place.works, name).enqueue_many([(1, 2)] * max(100, count))
    place.burst(*words)
    return place.drained_per_second(since)


def _work_for_a_while(place: Place, wanted: int) -> float:
    """Without the end of the worker, which claims nothing more then."""
    since = place.now_us()
    worker = place.worker("--async-slots", ASYNC_SLOTS)

    def rate() -> float | None:
        count, first, last = filling.drained(place.store, since_us=since)
        return count / ((last - first) / 1e6) if count >= wanted else None

    reached = until(rate, every=0.05)
    worker.send_signal(signal.SIGTERM)
    worker.communicate()
    return reached
