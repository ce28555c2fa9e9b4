"""What is to happen in one run of the simulation: a list of steps, all of it made from a seed.

A plan is data. It can be run again, and run without some of its steps, which is how a failure is made short.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from everbeat.model.task import PLAIN, TaskPolicy

ACTIVE_SECONDS = 9.0
RETRY = {"has_retry": True, "base_seconds": 0.2, "max_seconds": 1.0, "jitter": False}
AGAIN: tuple[dict[str, Any], ...] = ({"max_attempts": 3, **RETRY}, {"max_attempts": 2, **RETRY}, {"on_crash": "retry"})
POLICIES = (
    {}, {}, {}, *AGAIN, {"on_crash": "pending"}, {"on_crash": "fail"}, {"isolated": True}, {"timeout": 1.0},
    {"timeout": 1.0, "max_attempts": 2, **RETRY},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """What kind of trouble there is, and for what kind of tasks. Each thing is as likely as it is often listed."""

    seconds: tuple[float, ...] = (0.002, 0.01, 0.1, 0.5, 2.0)
    behaviours: tuple[str, ...] = ("ok", "ok", "ok", "ok", "raise", "raise_once", "poison", "poison_once")
    policies: tuple[dict[str, Any], ...] = POLICIES
    keys: tuple[str | None, ...] = (None, None, None, "red", "blue")
    where: tuple[str, ...] = (
        ("dispatcher",) * 6 + ("reaper",) * 3 + ("heartbeat", "heartbeat", "lease", "startup", "startup", "sender", "")
    )
    """A loop, or a verb of the store, in whose calls a fault strikes; "" is whoever calls next."""
    faults: tuple[str, ...] = ("before", "after", "after", "crash", "crash_after", "crash_after", "stall",
                               "stall_after", "stop", "stop_after")  # fmt: skip
    others: tuple[str, ...] = ("kill_child", "kill_child", "kill_worker", "stop_worker", "outage", "set_clock", "drain",
                               "cancel", "cancel", "requeue", "retry", "fail", "accept")  # fmt: skip


ANYTHING = Theme()
FREEZES = Theme(
    seconds=(0.5, 2.0, 4.0), behaviours=("ok",) * 5 + ("poison_once",), policies=AGAIN, keys=(None,) * 5 + ("red",),
    where=("dispatcher", "reaper", "declare_dead", "declare_dead", "recover", "heartbeat", "flush"),
    faults=("stall", "stall", "stall_after", "stop", "stop_after"),
    others=("stop_worker",) * 6 + ("kill_worker", "kill_child", "requeue"),
)  # fmt: skip
LEASES = Theme(
    seconds=(0.1, 2.0, 5.0, 8.0), behaviours=("ok",), policies=({}, *AGAIN), keys=("red", "red", "red", "blue"),
    where=("dispatcher", "heartbeat", "lease", "flush", "recover", "reaper"),
    faults=("before", "after", "stall", "stall_after", "stop", "stop", "stop_after", "crash"),
    others=("stop_worker",) * 4 + ("outage", "kill_worker", "kill_child", "requeue", "cancel", "retry"),
)  # fmt: skip
DOUBTS = Theme(
    where=("flush",) * 6 + ("recover", "declare_dead", "beat", "startup", "sender", "register", "retire"),
    faults=("after", "after", "crash_after", "before", "crash", "stall_after"),
)
THEMES = (ANYTHING, ANYTHING, FREEZES, FREEZES, LEASES, DOUBTS)


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task that is sent, and what its code does each time it runs."""

    id: str
    name: str
    seconds: float
    behaviour: str = "ok"
    """ok; raise: always; raise_once; poison: kills its process, always; poison_once."""
    policy: TaskPolicy = PLAIN
    listens: bool = True
    """Ends when it is told to."""
    exclusive_key: str | None = None
    unique_key: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    at: float
    """Virtual seconds after the beginning."""
    kind: str
    facts: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.at:7.3f}", self.kind, *(fact.id if isinstance(fact, TaskSpec) else str(fact)
                                                         for fact in self.facts)])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    places: int
    """How many workers there are to be; one that ends is followed by another."""
    processes: int
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, seed: int) -> "Plan":
        random = Random(f"plan {seed}")
        theme = random.choice(THEMES)
        tasks = [_task(random, number, theme) for number in range(random.randint(3, 12))]
        sends = [Step(_moment(random, 0.5), "send", (task,)) for task in tasks]
        faults = [_fault(random, theme) for _ in range(random.randint(0, 8))]
        others = [_other(random, tasks, theme) for _ in range(random.randint(0, 6))]
        steps = sorted((*sends, *faults, *others), key=lambda step: step.at)
        places = random.choice((2,) * 12 + (3,) * 5 + (4, 4, 8))
        return cls(seed=seed, places=places, processes=random.choice((1, 2)), steps=tuple(steps))

    def only(self, keep: list[int]) -> "Plan":
        return Plan(self.seed, self.places, self.processes, tuple(self.steps[number] for number in keep))


def _moment(random: Random, share: float = 1.0) -> float:
    return round(random.random() * ACTIVE_SECONDS * share, 3)


def _task(random: Random, number: int, theme: Theme) -> TaskSpec:
    return TaskSpec(
        id=f"t{number:02}", name=random.choice(("add", "sub")),
        seconds=round(random.choice(theme.seconds) * (0.5 + random.random()), 4),
        behaviour=random.choice(theme.behaviours), policy=TaskPolicy(**random.choice(theme.policies)),
        listens=random.random() < 0.7, exclusive_key=random.choice(theme.keys),
        unique_key=random.choice((None, None, None, None, None, "one")),
    )  # fmt: skip


def _fault(random: Random, theme: Theme) -> Step:
    seconds = random.choice((0.0, 0.01, 0.1, 1.0, 3.0, 6.0, 9.0))
    facts = (random.randrange(8), random.choice(theme.where), random.choice(theme.faults), seconds)
    return Step(_moment(random), "fault", facts)


def _other(random: Random, tasks: list[TaskSpec], theme: Theme) -> Step:
    kind, place, task = random.choice(theme.others), random.randrange(8), random.choice(tasks).id
    facts: tuple[Any, ...]
    match kind:
        case "kill_child":
            facts = (place, random.randrange(4))
        case "kill_worker":
            facts = (place, random.choice((0.0, 0.1, 2.0, 8.0)))
        case "stop_worker":
            facts = (place, random.choice((0.5, 3.0, 4.5, 5.5, 6.0, 7.0, 9.0)))
        case "outage":
            facts = (random.choice((0.1, 1.0, 4.0, 8.0)),)
        case "set_clock":
            facts = (random.choice((-20.0, -6.0, -1.0, 1.0, 6.0, 20.0)),)
        case "drain":
            facts = (place, random.choice((0.0, 0.5, 3.0)))
        case _:
            facts = (task,)
    return Step(_moment(random), kind, facts)
