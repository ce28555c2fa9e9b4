"""What became of the tasks of one trial, counted. Pure: from what the ledger and the store say."""

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

ENDED = ("done", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    number: int
    began: float
    """Seconds from the fault; what came before it is negative."""
    ended: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One system with one setting under one fault."""

    variant: str
    fault: str
    taken_at: str
    commit: str
    """The last one that changed Everbeat itself."""
    load: list[float]
    """Of the machine, over one minute, before and after."""
    accepted: list[int]
    runs: list[Run]
    states: dict[int, str]
    """At the end: "done", "failed", "waiting", "held" or "gone"."""
    watched: float
    """Seconds from the fault to the last look."""
    frozen: list[int] = field(default_factory=list)
    """Tasks whose runs stood still; these may have ended later."""
    believed: list[int] = field(default_factory=list)
    """Tasks that were done when a run that had been replaced ended, while the one that replaced it still went on."""
    restarts: int = 0
    """Workers that ended by themselves, not by our hand, and were started again."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"runs": [[run.number, run.began, run.ended] for run in self.runs]}


def read_trial(kept: dict[str, Any]) -> Trial:
    runs = [Run(number=number, began=began, ended=ended) for number, began, ended in kept["runs"]]
    states = {int(number): state for number, state in kept["states"].items()}
    return Trial(**kept | {"runs": runs, "states": states})


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    accepted: int
    never: int
    once: int
    more: int
    """How many tasks were begun never, once, more than once."""
    completed: int
    failed: int
    stuck: int
    """The store still shows them as waiting or running when we stopped to look."""
    lost: int
    """The store knows nothing of them, and no run of them has ended."""
    forgotten: int
    """The store knows nothing of them, though they ran to their end."""
    denied: int
    """Ran to their end, and the store says that they failed or that they are not over."""
    again: list[float]
    """Seconds from the fault to the next begin of each task that it interrupted and that was begun again."""
    needless: int
    """Begun more than once though they had not been interrupted."""
    interrupted: int
    left: int
    """Of these, how many were not begun again though the store still shows them as waiting or running."""


def account_of(trial: Trial, *, without: frozenset[int] = frozenset()) -> Account:
    """Of all that were accepted, but for these."""
    numbers = [number for number in trial.accepted if number not in without]
    begins = {number: sum(run.number == number for run in trial.runs) for number in numbers}
    states = {number: trial.states.get(number, "gone") for number in numbers}
    ended = {run.number for run in trial.runs if run.ended is not None}
    torn = {run.number for run in trial.runs if run.began < 0 and run.ended is None}
    torn = (torn | set(trial.frozen)) & set(numbers)
    again = {number: after for number in torn if (after := _next_begin(trial, number)) is not None}
    return Account(
        accepted=len(numbers),
        never=sum(count == 0 for count in begins.values()),
        once=sum(count == 1 for count in begins.values()),
        more=sum(count > 1 for count in begins.values()),
        completed=sum(state == "done" for state in states.values()),
        failed=sum(state == "failed" for state in states.values()),
        stuck=sum(state in ("waiting", "held") for state in states.values()),
        lost=sum(state == "gone" and number not in ended for number, state in states.items()),
        forgotten=sum(state == "gone" and number in ended for number, state in states.items()),
        denied=sum(state not in ("done", "gone") and number in ended for number, state in states.items()),
        again=sorted(again.values()),
        needless=sum(count > 1 and number not in torn for number, count in begins.items()),
        interrupted=len(torn),
        left=sum(number not in again and states[number] not in ENDED and states[number] != "gone" for number in torn),
    )


def middle(values: list[float]) -> float:
    return statistics.median(values)


def _next_begin(trial: Trial, number: int) -> float | None:
    return min((run.began for run in trial.runs if run.number == number and run.began >= 0), default=None)
