"""What Everbeat aims for: figures of its own, so many times a peer's best figure, so much of the floor. Pure.

Ratios are those within one run: they hold on any machine. Figures are those of `everbeat.bench.catalogue`, for a
machine like the one they were set on.
"""

from dataclasses import dataclass

from everbeat.bench.catalogue import MEASURES
from everbeat.bench.figures import Figure, Run, number, reaches

SHARE_OF_FLOOR = 0.6
STORES = ("sqlite", "postgresql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    what: str
    store: str
    key: str
    peer: str
    peer_key: str
    times: float
    variants: tuple[str, ...] = ()
    """Only these settings of the peer; none given: its best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    what: str
    wanted: float
    found: float | None
    """None: one of the two was not measured."""

    @property
    def reached(self) -> bool | None:
        return None if self.found is None else self.found >= self.wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A figure to reach, in words, and what was found of it."""

    what: str
    wanted: str
    found: str | None
    reached: bool | None
    """None: it was not measured."""


PGBENCH = "pgbench"
"""One INSERT per commit into Everbeat's own table, by PostgreSQL's own benchmark."""
CLIENTS = {"enqueue.single": "one thread", **{f"enqueue.threads.{n}": f"{n} threads" for n in (4, 8, 16)}}
DURABLE_HUEY = ("default", "4 threads", "results")
AIMS = [
    Aim(what="async no-ops against huey", store="sqlite", key="drain.async", peer="huey", peer_key="drain.sync",
        times=8, variants=DURABLE_HUEY),
    Aim(what="sync process slots, frames, against huey's threads", store="sqlite", key="drain.sync.frames",
        peer="huey", peer_key="drain.sync", times=4, variants=DURABLE_HUEY),
    Aim(what="async no-ops against pgqueuer", store="postgresql", key="drain.async", peer="pgqueuer",
        peer_key="drain.async", times=1.5),
    Aim(what="async no-ops against pgqueuer without settings", store="postgresql", key="drain.async", peer="pgqueuer",
        peer_key="drain.async", times=2.5, variants=("default",)),
    Aim(what="bulk enqueue against pgqueuer", store="postgresql", key="enqueue.bulk", peer="pgqueuer",
        peer_key="enqueue.bulk", times=1.5),
    Aim(what="sync process slots, frames, against Celery's processes", store="postgresql", key="drain.sync.frames",
        peer="celery", peer_key="drain.sync", times=12),
    Aim(what="sync process slots, frames, against dramatiq's threads", store="postgresql", key="drain.sync.frames",
        peer="dramatiq", peer_key="drain.sync", times=2),
    *(Aim(what=f"single enqueue, {clients}, against pgbench", store="postgresql", key=key, peer=PGBENCH, peer_key=key,
          times=0.8) for key, clients in CLIENTS.items()),
    *(Aim(what="async drain with 5,000,000 ended tasks against none", store=store, key="growth.5m", peer="everbeat",
          peer_key="growth.0", times=0.9) for store in STORES),
    *(Aim(what="async drain, the first of 1,000,000 that wait, against none", store=store, key="growth.backlog",
          peer="everbeat", peer_key="growth.0", times=0.9) for store in STORES),
]  # fmt: skip


def in_figures(run: Run) -> list[Stated]:
    """Those with a number to reach, also where they were not measured; only on stores that were."""
    found = []
    for store in (store for store in STORES if any(f.store == store for f in run.figures if f.subject == "everbeat")):
        for measure in MEASURES:
            wanted = measure.target_on(store)
            if not wanted or measure.only_on not in (None, store):
                continue
            figure = next(iter(run.find(measure.key, store=store)), None)
            found.append(
                Stated(
                    what=f"{measure.title}, {store}", wanted=f"{wanted} {measure.unit}",
                    found=None if figure is None else _said(wanted, figure),
                    reached=None if figure is None else reaches(wanted, figure),
                )
            )  # fmt: skip
    return found


def _said(wanted: str, figure: Figure) -> str:
    """What the target speaks of."""
    if "p50" not in wanted and "p95" not in wanted:
        return f"{number(figure.median)} {figure.unit}"
    values = {"p50": figure.median, "p95": figure.p95}
    return f"{', '.join(f'{name} {number(value)}' for name, value in values.items() if name in wanted)} {figure.unit}"


def against_peers(run: Run) -> list[Found]:
    return [Found(what=f"{aim.what}, {aim.store}", wanted=aim.times, found=_ratio(run, aim)) for aim in AIMS]


def against_floor(run: Run) -> list[Found]:
    """One for each figure of Everbeat that has a floor."""
    found = []
    for figure in run.figures:
        floor = floor_of(run, figure)
        if figure.subject == "everbeat" and floor is not None:
            share = figure.median / floor.median
            found.append(Found(what=f"{figure.title}, {figure.store}", wanted=SHARE_OF_FLOOR, found=share))
    return found


def floor_of(run: Run, figure: Figure) -> Figure | None:
    return next(iter(run.find(figure.key, subject="limit", store=figure.store)), None)


def _ratio(run: Run, aim: Aim) -> float | None:
    own = run.find(aim.key, store=aim.store)
    store = aim.store if aim.peer == "everbeat" else None
    theirs = [
        figure
        for figure in run.find(aim.peer_key, subject=aim.peer, store=store)
        if not aim.variants or figure.variant in aim.variants
    ]
    best = max((figure.median for figure in theirs), default=0.0)
    return own[0].median / best if own and best else None
