"""Run plans and tell of those that break a promise: shortened, with a trace and the command that shows it again."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.postgres import GIVEN, Cluster, EmptyDatabase
from tests.sim.model import check
from tests.sim.plan import Plan
from tests.sim.stores import Ground, PostgresGround, SQLiteGround
from tests.sim.world import World

MOST_TRIES = 200
MOST_SECONDS = 60.0
"""For making a failure short."""
STORES = ("sqlite", "postgres")


@dataclass(frozen=True, slots=True)
class Place:
    """Where schedules are run, by as many processes as like to."""

    store: str
    directory: Path
    url: str = ""
    """Of the server, if there is one."""


@contextmanager
def a_place(store: str) -> Iterator[Place]:
    """In memory, where there is such a place: nothing here needs a disk that lasts. On the server that is named, or one
    of its own."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="everbeat-sim-", dir=memory if memory.is_dir() else None))
    given = os.environ.get(GIVEN)
    cluster = None if given or store == "sqlite" else Cluster()
    try:
        yield Place(store, directory, cluster.url("postgres") if cluster else given or "")
    finally:
        if cluster is not None:
            cluster.remove()
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Failure:
    plan: Plan
    found: list[str]
    trace: list[str]
    store: str
    kept: list[int] | None = None
    """The steps that are left of the plan."""

    def __str__(self) -> str:
        kept = "" if self.kept is None else f" KEEP={','.join(map(str, self.kept)) or 'none'}"
        store = "" if self.store == "sqlite" else f" STORE={self.store}"
        steps = [f"  {step}" for step in self.plan.steps]
        return "\n".join(
            [
                f"schedule {self.plan.seed}: {self.plan.places} workers of {self.plan.processes} processes",
                "steps:", *steps,
                "trace (virtual seconds):", *(f"  {line}" for line in self.trace),
                "broken:", *(f"  {line}" for line in self.found),
                f"see it again: make sim N=1 SEED={self.plan.seed}{kept}{store}",
            ]
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Played:
    broken: list[str]
    """Promises that were not kept."""
    error: str | None
    """What a loop raised, which ended it."""
    trace: list[str]

    @property
    def found(self) -> list[str]:
        return self.broken if self.error is None else [*self.broken, self.error]


class Theatre:
    """Plans are run here one after the other, by one process."""

    def __init__(self, place: Place) -> None:
        self._store = place.store
        self._directory = Path(tempfile.mkdtemp(dir=place.directory))
        self._ground: Ground
        if place.store == "sqlite":
            self._ground = SQLiteGround(self._directory)
        else:
            self._ground = PostgresGround(EmptyDatabase(place.url).url())

    def close(self) -> None:
        self._ground.close()

    def play(self, plan: Plan, *, is_told: bool = False) -> Played:
        error = None
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            world = World(plan, self._ground, Path(name), is_told=is_told)
            try:
                world.run()
                broken = check(world)
            except Exception as raised:  # noqa: BLE001 - whatever a loop raises is a finding
                broken, error = world.broken, f"{type(raised).__name__}: {raised}{_where(raised)}"
            finally:
                world.close()
        return Played(broken, error, world.trace)

    def failures(self, seeds: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Those that break a promise, and the first that each breaks."""
        for seed in seeds:
            found = self.play(Plan.of(seed)).found
            if found:
                yield seed, found[0]

    def failure(self, plan: Plan, *, kept: list[int] | None = None) -> Failure | None:
        shown = plan if kept is None else plan.only(kept)
        played = self.play(shown, is_told=True)
        return Failure(shown, played.found, played.trace, self._store, kept) if played.found else None

    def shorten(self, plan: Plan, *, seconds: float = MOST_SECONDS) -> Failure | None:
        """Leave out steps, many at once first, as long as the same is broken without them and there is time."""
        give_up_at = time.monotonic() + seconds
        kinds = set(map(kind_of, self.play(plan).found[:1]))
        kept, size, tries = list(range(len(plan.steps))), len(plan.steps) // 2, MOST_TRIES
        while size and tries > 0 and time.monotonic() < give_up_at:
            for first in range(0, len(kept), size):
                fewer = kept[:first] + kept[first + size :]
                tries -= 1
                is_time = tries > 0 and time.monotonic() < give_up_at
                if is_time and kinds.intersection(map(kind_of, self.play(plan.only(fewer)).found)):
                    kept = fewer
                    break
            else:
                size //= 2
        return self.failure(plan, kept=kept) or self.failure(plan)


def kind_of(finding: str) -> str:
    """What is wrong, without whose it is: the words of it."""
    return " ".join(re.findall(r"\b[a-z]{2,}\b", re.sub(r"\{.*?\}|\[.*?\]|\(.*?\)|'.*?'", "", finding)))


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace is not None else ""
