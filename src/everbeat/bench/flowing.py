"""Measures of workflows: nodes per second, from the first start to the last end as the store has them."""

from everbeat.bench.place import Ground, Place
from everbeat.workflow import Workflow

ASYNC_SLOTS = "200"


def chain(ground: Ground, scale: float) -> list[float]:
    """Each node waits for the one before: one commit and one dispatch for each."""
    samples = []
    for _ in range(3):
        with ground.place() as place:
            flow = Workflow("chain")
            last = flow.add(place.works.noop, 0, 1)
            for _ in range(max(50, round(1_000 * scale)) - 1):
                last = flow.add(place.works.noop, last, 1)
            samples.append(_run(place, flow))
    return samples


def fan_share(ground: Ground, scale: float) -> list[float]:
    """Ten thousand nodes between the one they all take a result from and the one that takes all of theirs, in percent
    of the rate of as many plain tasks."""
    count = max(100, round(10_000 * scale))
    samples = []
    for _ in range(3):
        with ground.place() as place:
            since = place.now_us()
            place.works.async_noop.enqueue_many([(1, 2)] * count)
            place.burst("--async-slots", ASYNC_SLOTS)
            plain = place.drained_per_second(since)
            flow = Workflow("fan")
            first = flow.add(place.works.async_noop, 1, 2)
            flow.add(place.works.gather, *[flow.add(place.works.async_noop, first, number) for number in range(count)])
            samples.append(100 * _run(place, flow, "--async-slots", ASYNC_SLOTS) / plain)
    return samples


def _run(place: Place, flow: Workflow, *words: str) -> float:
    since = place.now_us()
    run = flow.start(place.works.app)
    place.burst(*words)
    run.result(timeout=0)
    return place.drained_per_second(since)
