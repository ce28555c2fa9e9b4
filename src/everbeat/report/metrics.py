"""Every metric: its name, what it means, and where its value comes from.

Facts of the store are the same whichever worker is asked, so they are to be read with max(), not added up. What a
worker measured of itself is its own. A metric that can not be known here has no sample; a zero would be a lie.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from everbeat.decide import measure
from everbeat.model.recovery import Cause
from everbeat.model.state import TaskStatus
from everbeat.model.total import Total
from everbeat.store.messages import Measures, QueueCount

PREFIX = "everbeat_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DEATH_CAUSES = ("proof", "silence", "manual")
ACTIONS = ("retry", "pending", "failed", "cancelled")
"""What becomes of a task that is recovered."""
TIMES = {
    measure.DETECTION: "From the moment a worker was last seen alive until it was declared dead.",
    measure.RESTART: "From the recovery of a task until its code was started again.",
}


class Observed(Protocol):
    """Observations by bounds; the last count is of those above every bound."""

    @property
    def bounds(self) -> Sequence[float]: ...

    @property
    def counts(self) -> Sequence[int]: ...

    @property
    def total(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMeasures:
    """What only the worker itself knows."""

    spooled_outcomes: int
    flush_sizes: Observed
    durations: Mapping[str, Observed] = field(default_factory=dict)


def text(store: Measures | None, own: OwnMeasures | None, *, is_up: bool) -> bytes:
    """All metrics in the text format of Prometheus. `store` is None while it can not be read."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given([*of_store(store, is_up=is_up), *of_worker(own)]))
    return generate_latest(registry)


def plain(store: Measures) -> dict[str, list[dict[str, object]]]:
    """The same as values, for `--json`, by the names that the text has."""
    return {
        _name(family): [
            {"name": sample.name, "labels": dict(sample.labels), "value": sample.value} for sample in family.samples
        ]
        for family in [*of_store(store, is_up=True), *of_worker(None)]
    }


def _name(family: Metric) -> str:
    """The library keeps the name of a counter without its ending."""
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def of_store(found: Measures | None, *, is_up: bool) -> Iterator[Metric]:
    yield _gauge("store_up", "Whether the store can be read and written.", [float(is_up)])
    totals = found.totals if found else []
    yield _tasks(found.counts if found else [])
    yield _oldest(found)
    yield _gauge("quarantined_tasks", "Tasks set aside because they kept killing their process.",
                 [found.quarantined] if found else [])  # fmt: skip
    yield _by("workers", "Workers that the store knows, by status.", "status", found.workers if found else {})
    yield _by("workflows", "Workflows by status, without those nested in another.", "status",
              found.workflows if found else {})  # fmt: skip
    yield _by("halted_workflows", "Workflows, nested ones too, that an error has paused or that could not be mended.",
              "cause", found.halted_workflows if found else {})  # fmt: skip
    yield _gauge("heartbeat_age_seconds", "Age of the last beat of the living worker that was silent the longest.",
                 [found.heartbeat_age] if found and found.heartbeat_age is not None else [])  # fmt: skip
    yield _gauge("degraded", "1 while there are tasks that could not be recovered.",
                 [float(found.degraded)] if found else [])  # fmt: skip
    yield _gauge("undelivered_events", "Events that wait to be told to their subscribers.",
                 [found.undelivered] if found else [])  # fmt: skip
    yield from _moments(totals)
    yield from _counters(totals, is_known=found is not None)
    for name, says in TIMES.items():
        yield _times(name, says, totals, is_known=found is not None)


def of_worker(own: OwnMeasures | None) -> Iterator[Metric]:
    yield _gauge("spooled_outcomes", "Outcomes this worker keeps on disk until the store takes them.",
                 [own.spooled_outcomes] if own else [])  # fmt: skip
    sizes = HistogramMetricFamily(f"{PREFIX}flush_batch_size", "Tasks settled, started and claimed by one transaction.")
    if own:
        _add(sizes, [], own.flush_sizes)
    yield sizes
    durations = HistogramMetricFamily(f"{PREFIX}task_duration_seconds", "Run times of tasks.", labels=["name"])
    for name, observed in sorted((own.durations if own else {}).items()):
        _add(durations, [name], observed)
    yield durations


class _Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _gauge(name: str, says: str, values: Sequence[float]) -> Metric:
    gauge = GaugeMetricFamily(PREFIX + name, says)
    for value in values:
        gauge.add_metric([], value)
    return gauge


def _by(name: str, says: str, label: str, counts: Mapping[str, int]) -> Metric:
    gauge = GaugeMetricFamily(PREFIX + name, says, labels=[label])
    for value, count in counts.items():
        gauge.add_metric([value], count)
    return gauge


def _tasks(counts: Iterable[QueueCount]) -> Metric:
    tasks = GaugeMetricFamily(f"{PREFIX}tasks", "Tasks by queue and status.", labels=["queue", "status"])
    found = {(count.queue, count.status): count.count for count in counts}
    for queue in sorted({queue for queue, _ in found}):
        for status in TaskStatus:
            tasks.add_metric([queue, status.value], found.get((queue, status), 0))
    return tasks


def _oldest(found: Measures | None) -> Metric:
    says = "How long the oldest task that could run now has waited; 0 if none waits."
    gauge = GaugeMetricFamily(f"{PREFIX}queue_oldest_runnable_seconds", says, labels=["queue"])
    if found is None:
        return gauge
    since = {count.queue: count.oldest_run_at for count in found.counts if count.oldest_run_at is not None}
    for queue in sorted({count.queue for count in found.counts}):
        waited = (found.now - since[queue]).total_seconds() if queue in since else 0.0
        gauge.add_metric([queue], max(0.0, waited))
    return gauge


def _moments(totals: Sequence[Total]) -> Iterator[Metric]:
    noted = {total.name: total.value for total in totals if not total.labels}
    says = {
        "reaper_last_pass_timestamp_seconds": "When silent workers were last looked for.",
        "retention_last_pass_timestamp_seconds": "When old records were last deleted.",
    }
    for name, meaning in says.items():
        yield _gauge(name, meaning, [noted[name]] if name in noted else [])


def _counters(totals: Sequence[Total], *, is_known: bool) -> Iterator[Metric]:
    """Each from 0 on: what appears with its first count shows no increase to who watches."""
    deaths = CounterMetricFamily(f"{PREFIX}worker_deaths", "Workers that were declared dead.", labels=["cause"])
    found = {total.labels["cause"]: total.value for total in totals if total.name == measure.DEATHS}
    for cause in [*DEATH_CAUSES, *sorted(found.keys() - set(DEATH_CAUSES))] if is_known else []:
        deaths.add_metric([cause], found.get(cause, 0.0))
    yield deaths
    says = "Tasks taken from a runner that was gone, by what became of them and why."
    recoveries = CounterMetricFamily(f"{PREFIX}recoveries", says, labels=["action", "cause"])
    taken = {(action, str(cause)): 0.0 for action, cause in product(ACTIONS, Cause)} if is_known else {}
    taken |= {(t.labels["action"], t.labels["cause"]): t.value for t in totals if t.name == measure.RECOVERIES}
    for labels, value in taken.items():
        recoveries.add_metric(labels, value)
    yield recoveries
    refused = CounterMetricFamily(f"{PREFIX}writes_refused", "Outcomes that came too late, were refused and kept.")
    if is_known:
        refused.add_metric([], sum(total.value for total in totals if total.name == measure.REFUSED))
    yield refused


def _times(name: str, says: str, totals: Sequence[Total], *, is_known: bool) -> Metric:
    found = {total.labels["le"]: total.value for total in totals if total.name == name}
    buckets, below = [], 0.0
    for bound in [*map(str, measure.SECONDS), "+Inf"]:
        below += found.get(bound, 0.0)
        buckets.append((bound, below))
    seconds = sum(total.value for total in totals if total.name == f"{name}_sum")
    family = HistogramMetricFamily(PREFIX + name, says)
    if is_known:
        family.add_metric([], buckets, seconds)
    return family


def _add(family: HistogramMetricFamily, labels: Sequence[str], observed: Observed) -> None:
    buckets, below = [], 0
    for bound, count in zip([*map(str, observed.bounds), "+Inf"], list(observed.counts), strict=True):
        below += count
        buckets.append((bound, float(below)))
    family.add_metric(labels, buckets, observed.total)
