"""What events add to the totals that metrics show."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.total import Total

DEATHS = "worker_deaths_total"
RECOVERIES = "recoveries_total"
REFUSED = "writes_refused_total"
DETECTION = "recovery_detection_seconds"
RESTART = "recovery_restart_seconds"

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Upper bounds of the buckets of a time; above the last one is "+Inf"."""

Label = tuple[str, str]


def totals_of(events: Iterable[Event]) -> list[Total]:
    found: Counter[tuple[str, tuple[Label, ...]]] = Counter()
    silences: list[float] = []
    for one in events:
        found.update(_counts(one))
        silence = one.facts.get("silent_for")
        if one.name == event.WORKER_DEAD and isinstance(silence, int | float):
            silences.append(silence)
    counts = [Total(name=name, labels=dict(labels), value=count) for (name, labels), count in found.items()]
    return counts + times(DETECTION, silences)


def times(name: str, seconds: Iterable[float]) -> list[Total]:
    """Observations of a time, each in its bucket, with their sum."""
    seen = list(seconds)
    buckets = Counter(_bucket(one) for one in seen)
    total = [Total(name=f"{name}_sum", value=sum(seen))] if seen else []
    return [*(Total(name=name, labels=dict(labels), value=count) for labels, count in buckets.items()), *total]


def _bucket(seconds: float) -> tuple[Label, ...]:
    at = bisect_left(SECONDS, seconds)
    return (("le", str(SECONDS[at]) if at < len(SECONDS) else "+Inf"),)


def _counts(one: Event) -> Iterator[tuple[str, tuple[Label, ...]]]:
    facts = one.facts
    match one.name:
        case event.WORKER_DEAD:
            yield DEATHS, (("cause", str(facts.get("cause"))),)
        case event.TASK_RECOVERED | event.TASK_QUARANTINED:
            yield RECOVERIES, (("action", str(facts.get("action"))), ("cause", str(facts.get("cause"))))
        case event.OUTCOME_REFUSED:
            yield REFUSED, ()
