"""Run plans and tell of those that break a promise: shortened, with a trace and the command that shows it again."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.sim.model import check
from tests.sim.plan import Plan
from tests.sim.world import World, make_template

MOST_TRIES = 200


@dataclass(frozen=True, slots=True)
class Failure:
    plan: Plan
    found: list[str]
    trace: list[str]
    kept: list[int] | None = None
    """The steps that are left of the plan."""

    def __str__(self) -> str:
        kept = "" if self.kept is None else f" KEEP={','.join(map(str, self.kept)) or 'none'}"
        steps = [f"  {step}" for step in self.plan.steps]
        return "\n".join(
            [
                f"schedule {self.plan.seed}: {self.plan.places} workers of {self.plan.processes} processes",
                "steps:", *steps,
                "trace (virtual seconds):", *(f"  {line}" for line in self.trace),
                "broken:", *(f"  {line}" for line in self.found),
                f"see it again: make sim N=1 SEED={self.plan.seed}{kept}",
            ]
        )  # fmt: skip


class Theatre:
    """A place on disk where plans are run one after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._template = make_template(directory)

    def play(self, plan: Plan, *, is_told: bool = False) -> tuple[list[str], list[str]]:
        """What is broken afterwards, and the trace."""
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            world = World(plan, self._template, Path(name), is_told=is_told)
            try:
                world.run()
                found = check(world)
            except Exception as error:  # noqa: BLE001 - whatever a loop raises is a finding
                found = [*world.broken, f"{type(error).__name__}: {error}{_where(error)}"]
            finally:
                world.close()
        return found, world.trace

    def failure(self, plan: Plan, *, kept: list[int] | None = None) -> Failure | None:
        found, trace = self.play(plan if kept is None else plan.only(kept), is_told=True)
        return Failure(plan if kept is None else plan.only(kept), found, trace, kept) if found else None

    def shorten(self, plan: Plan) -> Failure | None:
        """Leave out steps, many at once first, as long as something is broken without them."""
        kept, size, tries = list(range(len(plan.steps))), len(plan.steps) // 2, MOST_TRIES
        while size and tries > 0:
            for first in range(0, len(kept), size):
                fewer = kept[:first] + kept[first + size :]
                tries -= 1
                if tries > 0 and self.play(plan.only(fewer))[0]:
                    kept = fewer
                    break
            else:
                size //= 2
        return self.failure(plan, kept=kept) or self.failure(plan)


@contextmanager
def theatre() -> Iterator[Theatre]:
    """In memory, where there is such a place: nothing here needs a disk that lasts."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="everbeat-sim-", dir=memory if memory.is_dir() else None))
    try:
        yield Theatre(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def first_failure(seeds: Iterable[int], stage: Theatre) -> int | None:
    return next((seed for seed in seeds if stage.play(Plan.of(seed))[0]), None)


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace is not None else ""
