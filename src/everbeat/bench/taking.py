"""Take measures one after the other, and make a run of them."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from everbeat import __version__
from everbeat.bench import machine
from everbeat.bench.catalogue import Measure
from everbeat.bench.figures import Batched, Figure, Missing, Run
from everbeat.bench.place import Failed, Ground
from everbeat.bench.scale import Scale
from everbeat.errors import EverbeatError

Show = Callable[[str, int, int | None], None]
"""What is measured now, how many are done, and of how many."""


def take(
    ground: Ground, measures: Sequence[Measure], scale: Scale, *, show: Show, also: Sequence[int] = ()
) -> tuple[list[Figure], list[Missing]]:
    """One measure that fails does not stop the others. `also`: processes that belong to it and go on all the time."""
    figures: list[Figure] = []
    missing: list[Missing] = []
    for number, measure in enumerate(measures):
        if measure.only_on not in (None, ground.store):
            continue
        show(measure.title, number, len(measures))
        if not scale.includes(measure.least):
            missing.append(Missing(subject=measure.key, reason=f"only with --scale {measure.least}"))
            continue
        watch, began = machine.Watch(also), time.monotonic()
        try:
            taken = measure.take(ground, scale.factor)
        except (Failed, EverbeatError, OSError, subprocess.SubprocessError) as error:
            missing.append(Missing(subject=measure.key, reason=f"{type(error).__name__}: {error}"))
            continue
        figure = _figure(ground, measure, taken, watch.foreign_cores())
        figures.append(replace(figure, took_seconds=round(time.monotonic() - began, 1)))
    return figures, missing


def _figure(ground: Ground, measure: Measure, taken: list[float] | Batched, foreign_cores: float | None) -> Figure:
    samples, batch = taken if isinstance(taken, Batched) else (taken, None)
    return Figure(
        key=measure.key,
        title=measure.title,
        unit=measure.unit,
        better=measure.better,
        target=measure.target_on(ground.store),
        samples=[round(sample, 4) for sample in samples],
        store=ground.store,
        version=__version__,
        variant=f"{ground.processes} processes",
        batch=None if batch is None else round(batch, 2),
        foreign_cores=foreign_cores,
    )


class Recorder:
    """What is known of a run before its first figure and after its last."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC)
        self._load = machine.load()

    def finish(self, *, command: str, scale: str, figures: list[Figure], missing: list[Missing]) -> Run:
        return Run(
            commit=commit(),
            command=command,
            started_at=self._started.isoformat(timespec="seconds"),
            scale=scale,
            machine=machine.facts(),
            figures=figures,
            missing=missing,
            load_before=self._load,
            load_after=machine.load(),
        )


def commit() -> str:
    """Of the source that is measured, if it is a checkout; else the version."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return __version__
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return __version__
    return answer.stdout.strip() or __version__
