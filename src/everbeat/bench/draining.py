"""Measures of working: tasks per second, from the first start to the last end as the store has them.

Completion counts when it is committed. How many tasks shared a transaction is counted afterwards, in the store: the
floor beside it (bench/limit) makes its writes in batches of that size. Growth: the same with many ended tasks in the
store, or many that wait; what a database may still have to do when millions of rows have just been written (vacuum,
checkpoint) is done before. Of a backlog as many count as are drained otherwise, and not what the worker does until it
has heard that it is to stop; it is asked seldom how many have ended, which takes a processor a millisecond or two.
"""

import signal

from everbeat.bench.figures import Batched
from everbeat.bench.place import Ground, Place, until
from everbeat.store import filling

ASYNC_SLOTS = "1000"
"""As many tasks at once as the largest batches of others are."""
LOOK_SECONDS = 0.2


def sync_single(ground: Ground, scale: float) -> Batched:
    """One task at a time in each process slot: what tasks get that are not known to be short."""
    return _drained(ground, round(4_000 * scale), "noop", "--frame-depth", "1")


def sync_frames(ground: Ground, scale: float) -> Batched:
    """The default: short tasks go to a process several at a time."""
    return _drained(ground, round(30_000 * scale), "noop")


def async_default(ground: Ground, scale: float) -> Batched:
    """A hundred at once, which is what one gets without asking."""
    return _drained(ground, round(30_000 * scale), "async_noop")


def async_(ground: Ground, scale: float) -> Batched:
    return _drained(ground, round(30_000 * scale), "async_noop", "--async-slots", ASYNC_SLOTS)


def after_no_rows(ground: Ground, scale: float) -> list[float]:
    return _after(ground, scale, ended=0)


def after_a_million(ground: Ground, scale: float) -> list[float]:
    return _after(ground, scale, ended=1_000_000)


def after_five_million(ground: Ground, scale: float) -> list[float]:
    return _after(ground, scale, ended=5_000_000)


def before_a_million(ground: Ground, scale: float) -> list[float]:
    """The first tasks of a backlog of a million, which are what is drained otherwise."""
    wanted = round(30_000 * scale)
    with ground.place() as place:
        filling.fill_ready(place.store, 1_000_000, name=place.works.async_noop.name, policy=None)
        ground.settle(place)
        return [_work_for_a_while(place, wanted) for _ in range(5)]


def _after(ground: Ground, scale: float, *, ended: int) -> list[float]:
    with ground.place() as place:
        filling.fill_ended(place.store, ended, name=place.works.async_noop.name)
        ground.settle(place)
        return [_drain(place, round(30_000 * scale), "async_noop", "--async-slots", ASYNC_SLOTS) for _ in range(5)]


def _drained(ground: Ground, count: int, name: str, *words: str) -> Batched:
    samples, tasks, transactions = [], 0, 0
    for _ in range(3):
        with ground.place() as place:
            samples.append(_drain(place, count, name, *words))
            done, together = place.started()
            tasks, transactions = tasks + done, transactions + together
    return Batched(samples, tasks / transactions)


def _drain(place: Place, count: int, name: str, *words: str) -> float:
    since = place.now_us()
    getattr(place.works, name).enqueue_many([(1, 2)] * max(100, count))
    place.burst(*words)
    return place.drained_per_second(since)


def _work_for_a_while(place: Place, wanted: int) -> float:
    since = place.now_us()
    worker = place.worker("--async-slots", ASYNC_SLOTS)
    until(lambda: filling.done(place.store, since_us=since) >= wanted, every=LOOK_SECONDS)
    worker.send_signal(signal.SIGTERM)
    worker.communicate()
    return place.drained_per_second(since, most=wanted)
