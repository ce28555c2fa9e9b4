"""`python -m bench.limit ASKED`: the floor of one store, in a process of its own. ASKED and what is printed are JSON.

ASKED has the `url` of a PostgreSQL database, or none for SQLite files; the `scale`; the `keys` of the measures of
Everbeat whose floor is wanted; and the `batches` that Everbeat had, by key. A drain whose batch is not known has no
floor.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count as numbers

from bench.limit import draining, sending
from bench.limit.sqlite import SQLiteWriter
from bench.limit.writes import Opening, Writer, ids
from everbeat.bench.place import FILE, Ground, Place, ground_of
from everbeat.config import broker_from_url

DRAINS = {"drain.sync.single": 4_000, "drain.sync.frames": 30_000, "drain.async": 30_000, "drain.async-default": 30_000}
"""And how many tasks: as many as Everbeat drains."""
THREADS = {f"enqueue.threads.{threads}": threads for threads in (4, 8, 16)}
SENDS = ("enqueue.single", *THREADS, "enqueue.processes", "enqueue.bulk", "enqueue.unique")
KEYS = (*SENDS, *DRAINS)


@dataclass(frozen=True)
class Taken:
    samples: list[float]
    batch: float | None = None
    """Rows in a commit, on the average, if there may be several."""
    note: str = ""


class Floor:
    def __init__(self, ground: Ground, scale: float) -> None:
        self._ground = ground
        self._scale = scale
        self._has_many = ground.store == "postgresql"
        """Connections that can work at the same time."""

    def take(self, key: str, batch: float | None) -> Taken:
        if key in DRAINS:
            assert batch is not None
            return self._drain(self._count(DRAINS[key], 200), batch)
        if key in THREADS:
            return self._threads(THREADS[key])
        with self._store() as opening, closing(opening()) as writer:
            sending.single(writer, sending.WARM_UP)
            if key == "enqueue.single":
                return Taken([sending.single(writer, self._count(2_000, 100)) for _ in range(5)])
            if key == "enqueue.bulk":
                return Taken([sending.at_once(writer, self._count(50_000, 1_000)) for _ in range(5)])
            if key == "enqueue.unique":
                keys = numbers()
                return Taken([sending.unique(writer, self._count(25_000, 500), keys) for _ in range(5)])
            assert key == "enqueue.processes"
            shared = opening if self._has_many else partial(opening, takes_turns=True)
            return Taken(sending.by_processes(shared, self._count(1_000, 50), 3))

    def _threads(self, threads: int) -> Taken:
        count = self._count(8_000, 20 * threads)
        with self._store() as opening, closing(opening()) as writer:
            sending.grouped(writer, threads, threads * sending.WARM_UP)
            found = [sending.grouped(writer, threads, count) for _ in range(5)]
        batch = statistics.mean(batch for _, batch in found)
        one = Taken([rate for rate, _ in found], batch)
        if not self._has_many:
            return one
        one = replace(one, note="one connection")
        with self._store() as opening, _several(opening, threads) as writers:
            sending.apart(writers, threads * sending.WARM_UP)
            each = Taken([sending.apart(writers, count) for _ in range(5)], 1.0, "a connection for each")
        return _faster(one, each)

    def _drain(self, count: int, batch: float) -> Taken:
        one = Taken([self._drained(count, batch, 1) for _ in range(3)], batch)
        if not self._has_many:
            return one
        one = replace(one, note="one connection")
        return _faster(one, Taken([self._drained(count, batch, 2) for _ in range(3)], batch, "two connections"))

    def _drained(self, count: int, batch: float, connections: int) -> float:
        with self._ground.place() as place, _several(_opening(place), connections) as writers:
            writers[0].insert(ids(count))
            draining.drain(writers, batch)
            return place.drained_per_second()

    @contextmanager
    def _store(self) -> Iterator[Opening]:
        with self._ground.place() as place:
            yield _opening(place)

    def _count(self, full: int, least: int) -> int:
        return max(least, round(full * self._scale))


def _opening(place: Place) -> Opening:
    """To a store that Everbeat makes, and then leaves alone."""
    assert place.store is not None
    place.works.app.close()
    if (file := place.directory / FILE).exists():
        return partial(SQLiteWriter, file)
    from bench.limit.postgres import PostgresWriter

    return partial(PostgresWriter, place.url)


@contextmanager
def _several(opening: Callable[[], Writer], count: int) -> Iterator[Sequence[Writer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(opening())) for _ in range(count)]


def _faster(one: Taken, other: Taken) -> Taken:
    """It says what the other way came to."""
    slower, faster = sorted((one, other), key=_rate)
    return replace(faster, note=f"{faster.note}; {slower.note} {_rate(slower):,.0f}")


def _rate(taken: Taken) -> float:
    return statistics.median(taken.samples)


def main() -> None:
    asked = json.loads(sys.argv[1])
    ground = ground_of(broker_from_url(asked["url"]) if asked["url"] else None)
    floor = Floor(ground, asked["scale"])
    batches = asked["batches"]
    wanted = [key for key in KEYS if key in asked["keys"] and (key not in DRAINS or key in batches)]
    print(json.dumps({key: asdict(floor.take(key, batches.get(key))) for key in wanted}))


if __name__ == "__main__":
    main()
