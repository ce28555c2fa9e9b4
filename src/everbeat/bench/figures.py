"""What was measured: samples with a name and a unit, and what is said of them. Pure.

A run is kept as JSON with every sample, so that tables and charts can be made of it again, and a later run can be held
against it.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

FORMAT = 1
Better = Literal["higher", "lower"]


class NoRun(ValueError):
    """Not a run of a benchmark, or none that can be read."""


class Batched(NamedTuple):
    """Samples of work that was done many tasks at a time."""

    samples: list[float]
    batch: float
    """So many tasks began in one transaction, on the average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    key: str
    """What was measured, for programs: `drain.async`."""
    title: str
    unit: str
    better: Better
    samples: list[float]
    subject: str = "everbeat"
    """Who was measured: Everbeat, a peer, or "limit", the same writes with nothing around them."""
    variant: str = ""
    store: str = ""
    version: str = ""
    target: str = ""
    """The figure to reach, in words: "at least 80,000", "p95 under 100"."""
    note: str = ""
    batch: float | None = None
    """So many tasks shared a transaction, on the average. None: it was not counted."""
    foreign_cores: float | None = None
    """Processors that others used meanwhile."""
    took_seconds: float | None = None
    """Of the whole measure, with all that it made and removed. None: it was measured together with others."""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What must be the same in two figures that are compared."""
        return (self.key, self.subject, self.variant, self.store)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p95(self) -> float:
        """What 95 of 100 samples are at least as good as."""
        return quantile(self.samples, 0.95, better=self.better)

    @property
    def worst(self) -> float:
        return max(self.samples) if self.better == "lower" else min(self.samples)

    @property
    def reached(self) -> bool | None:
        """None: there is no target."""
        return reaches(self.target, self) if self.target else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Who or what could not be measured, and why."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    commit: str
    command: str
    started_at: str
    scale: str
    machine: dict[str, Any]
    figures: list[Figure]
    missing: list[Missing] = field(default_factory=list)
    load_before: list[float] = field(default_factory=list)
    load_after: list[float] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n"

    def find(self, key: str, *, subject: str = "everbeat", store: str | None = None) -> list[Figure]:
        """The figures of one subject, in all its variants."""
        return [f for f in self.figures if (f.key, f.subject) == (key, subject) and store in (None, f.store)]


def joined(figures: Iterable[Figure]) -> list[Figure]:
    """Those that were taken in turns with others are one figure each."""
    turns: dict[tuple[str, str, str, str], list[Figure]] = {}
    for figure in figures:
        turns.setdefault(figure.identity, []).append(figure)
    return [some[0] if len(some) == 1 else _joined(some) for some in turns.values()]


def _joined(turns: Sequence[Figure]) -> Figure:
    took = [figure.took_seconds for figure in turns if figure.took_seconds is not None]
    return replace(
        turns[0],
        samples=[sample for figure in turns for sample in figure.samples],
        batch=_mean(figure.batch for figure in turns),
        foreign_cores=_mean(figure.foreign_cores for figure in turns),
        took_seconds=round(sum(took), 1) if took else None,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.mean(known), 2) if known else None


def read_run(text: str) -> Run:
    """Raises NoRun. What a later version has added is passed over."""
    try:
        said = json.loads(text)
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise NoRun(f"it is not a benchmark's JSON of format {FORMAT}")
        figures = [Figure(**_known(Figure, one)) for one in said["figures"]]
        missing = [Missing(**_known(Missing, one)) for one in said.get("missing", [])]
        run = Run(**_known(Run, said) | {"figures": figures, "missing": missing})
    except NoRun:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoRun(f"it can not be read: {error}") from error
    if not all(f.samples and all(isinstance(s, int | float) for s in f.samples) for f in run.figures):
        raise NoRun("it has a figure without samples")
    return run


def _known(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in given.items() if name in names}


def quantile(samples: Iterable[float], share: float, *, better: Better = "lower") -> float:
    """The sample that this share of all are at least as good as."""
    ordered = sorted(samples, reverse=better == "higher")
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def reaches(target: str, figure: Figure) -> bool:
    """Read from the words of the target: "at least 80,000", "under 1", "p50 under 2 and p95 under 5"."""
    if " and " in target:
        return all(reaches(part, figure) for part in target.split(" and "))
    bound = float(target.split()[-1].replace(",", ""))
    value = figure.p95 if target.startswith("p95") else figure.median
    return value >= bound if "at least" in target else value < bound


def number(value: float) -> str:
    """With three figures or more, and no more than anybody reads."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def times(ratio: float) -> str:
    return f"{number(ratio)}x"


def spread(samples: Sequence[float]) -> str:
    """From the smallest to the largest."""
    return number(samples[0]) if len(samples) == 1 else f"{number(min(samples))}-{number(max(samples))}"
