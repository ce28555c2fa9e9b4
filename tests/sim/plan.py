"""What is to happen in one run of the simulation: a list of steps, all of it made from a seed.

A plan is data. It can be run again, and run without some of its steps, which is how a failure is made short.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.sim.flows import FlowSpec, TaskSpec, a_flow
from tests.sim.graphs import a_graph

from everbeat.model.task import TaskPolicy

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
                               "cancel", "cancel_and_kill", "cancel_and_kill", "requeue", "retry", "fail",
                               "accept")  # fmt: skip
    names: tuple[str, ...] = ("add", "sub")
    """Of tasks; "later" is async."""
    flows: int = 0
    """How many workflows there are, at most."""
    is_rich: bool = False
    """They have all that workflows may have, and what has ended is soon deleted."""
    lasts: float = 9.0
    """Virtual seconds."""
    proof: float = 0.8
    """How likely it is that the kernel can tell who is gone; otherwise only silence does."""


ANYTHING = Theme(flows=1)
FREEZES = Theme(
    lasts=12.0,
    seconds=(0.5, 2.0, 4.0), behaviours=("ok",) * 5 + ("poison_once",), policies=AGAIN, keys=(None,) * 5 + ("red",),
    where=("dispatcher", "reaper", "declare_dead", "declare_dead", "recover", "heartbeat", "flush"),
    faults=("stall", "stall", "stall_after", "stop", "stop_after"),
    others=("stop_worker",) * 6 + ("late_verdict",) * 4 + ("kill_worker", "kill_child", "requeue"),
)  # fmt: skip
LEASES = Theme(
    lasts=22.0,
    seconds=(0.1, 3.0, 8.0, 12.0), behaviours=("ok",), policies=({}, *AGAIN), keys=("red", "red", "red", "blue"),
    where=("dispatcher", "heartbeat", "lease", "flush", "recover", "reaper"),
    faults=("before", "after", "stall", "stall_after", "stop", "stop", "stop_after", "crash"),
    others=("stop_worker",) * 4 + ("stutter",) * 4
           + ("outage", "kill_worker", "kill_child", "requeue", "cancel", "retry"),
)  # fmt: skip
DOUBTS = Theme(
    where=("flush",) * 6 + ("recover", "declare_dead", "beat", "startup", "sender", "register", "retire"),
    faults=("after", "after", "crash_after", "before", "crash", "stall_after"),
)
FLOWS = Theme(
    seconds=(0.002, 0.01, 0.1, 0.5), behaviours=("ok",) * 8 + ("raise", "raise_once", "poison_once"), flows=3,
    keys=(None,) * 9 + ("red",),
    where=("flush",) * 6 + ("dispatcher", "recover", "recover", "reaper", "startup", "start_workflow", "sender"),
    others=("kill_child", "kill_worker", "kill_worker", "stop_worker", "outage", "drain", "cancel", "pause", "pause",
            "cancel_flow", "lock_flow", "lock_flow"),
)  # fmt: skip
UNPROVEN = Theme(
    lasts=12.0,
    seconds=(0.1, 0.5, 2.0, 6.0),
    proof=0.0,
    where=("dispatcher", "reaper", "heartbeat", "beat", "declare_dead", "recover"),
    others=(
        "kill_worker",
        "kill_worker",
        "stop_worker",
        "stop_worker",
        "outage",
        "blocked",
        "blocked",
        "blocked",
        "kill_child",
        "cancel",
    ),
)
ADOPTIONS = Theme(
    lasts=14.0,
    seconds=(0.5, 1.0, 2.0, 4.0), behaviours=("ok", "raise_later", "raise_later"), keys=(None,),
    policies=({"max_attempts": 4, "has_retry": True, "base_seconds": 4.0, "max_seconds": 4.0, "jitter": False},
              {"on_crash": "retry"}, {"on_crash": "pending"}),
    where=("dispatcher", "flush", "flush", "recover"),
    faults=("stall", "stop", "stop", "stop_after", "before", "after", "after"),
    others=("stop_worker",) * 5 + ("kill_child", "kill_worker", "requeue"),
)  # fmt: skip
OUTAGES = Theme(
    lasts=14.0, seconds=(0.1, 0.5, 2.0), faults=("before", "after", "crash", "crash_after"),
    others=("outage",) * 3 + ("blocked",) * 4 + ("cut_off",) * 4 + ("kill_worker", "drain", "kill_child", "cancel"),
)  # fmt: skip
THEMES = (ANYTHING, ANYTHING, FREEZES, FREEZES, LEASES, DOUBTS, FLOWS, FLOWS, UNPROVEN, UNPROVEN, ADOPTIONS, OUTAGES)


WITH_ASYNC = 1_000_000
"""Plans from this seed on have async tasks, too. Those before it are what they were: some of them are kept as tests."""

WITH_GRAPHS = 2_000_000
"""Plans from this seed on also have richer workflows, and a janitor that deletes."""


@dataclass(frozen=True, slots=True)
class Step:
    at: float
    """Virtual seconds after the beginning."""
    kind: str
    facts: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.at:7.3f}", self.kind, *(fact.id if isinstance(fact, TaskSpec | FlowSpec) else str(fact)
                                                         for fact in self.facts)])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    places: int
    """How many workers there are to be; one that ends is followed by another."""
    processes: int
    async_slots: int
    """0: there are no async tasks."""
    steps: tuple[Step, ...]
    lasts: float = 9.0
    has_proof: bool = True
    """The kernel tells who is gone."""
    skews: tuple[float, ...] = (0.0,)
    """By how many seconds the clocks of workers are wrong, where the database has one of its own."""
    keeps: int = 0
    """For how many seconds what has ended is kept; 0: for longer than a plan lasts."""
    keeps_workers: int = 0
    """The same, of workers: longer than any of them stands still."""

    @property
    def tasks(self) -> dict[str, TaskSpec]:
        """All that there may ever be."""
        sent = [step.facts[0] for step in self.steps if step.kind in ("send", "start")]
        return {task.id: task for one in sent for task in (one.tasks if isinstance(one, FlowSpec) else (one,))}

    @property
    def flows(self) -> dict[str, FlowSpec]:
        return {step.facts[0].id: step.facts[0] for step in self.steps if step.kind == "start"}

    @classmethod
    def of(cls, seed: int) -> "Plan":
        random = Random(f"plan {seed}")
        theme = random.choice(THEMES)
        if seed >= WITH_ASYNC:
            theme = replace(theme, names=("add", "sub", "later", "later"))
        if seed >= WITH_GRAPHS:
            theme = replace(
                theme, is_rich=True, flows=max(theme.flows, 2), where=(*theme.where, "janitor", "retain"),
                others=(*theme.others, "retry_flow", "retry_flow", "pause", "cancel_flow"),
            )  # fmt: skip
        a_workflow = a_graph if theme.is_rich else a_flow
        tasks = [_task(random, f"t{number:02}", theme) for number in range(random.randint(1 if theme.flows else 3, 12))]
        flows = [
            a_workflow(random, number, lambda task_id: _task(random, task_id, theme))
            for number in range(random.randint(0, theme.flows))
        ]
        sends = [Step(_moment(random, theme, 0.5), "send", (task,)) for task in tasks]
        if "later" in theme.names and random.random() < 0.6:
            sends += _crowd(random, theme)
        starts = [Step(_moment(random, theme, 0.4), "start", (flow,)) for flow in flows]
        if theme.is_rich:
            starts += [_tend(random, start) for start in starts]
        faults = [_fault(random, theme) for _ in range(random.randint(0, 8))]
        tasks = [*(step.facts[0] for step in sends), *(task for flow in flows for task in flow.tasks)]
        others = [_other(random, tasks, flows, theme) for _ in range(random.randint(0, 6))]
        steps = sorted((*sends, *starts, *faults, *others), key=lambda step: step.at)
        places = random.choice((2,) * 12 + (3,) * 5 + (4, 4, 8))
        return cls(
            seed=seed, places=places, processes=random.choice((1, 2)),
            async_slots=random.choice((1, 2, 3, 8)) if "later" in theme.names else 0, steps=tuple(steps),
            lasts=theme.lasts,
            has_proof=random.random() < theme.proof,
            skews=tuple(random.choice((0.0, 0.0, 3.0, -40.0, 3600.0)) for _ in range(places)),
            keeps=random.choice((2, 3, 5)) if theme.is_rich else 0, keeps_workers=round(4 * theme.lasts) + 30,
        )  # fmt: skip

    def only(self, keep: list[int]) -> "Plan":
        return replace(self, steps=tuple(self.steps[number] for number in keep))


def _moment(random: Random, theme: Theme, share: float = 1.0) -> float:
    return round(random.random() * theme.lasts * share, 3)


def _tend(random: Random, start: Step) -> Step:
    """What somebody does about it whenever an error has paused it."""
    changes = [random.choice(("retry", "resume")) for _ in range(random.choice((0, 1, 1, 2, 9)))]
    return Step(start.at, "tend", (start.facts[0].id, tuple(changes), random.choice((0.5, 2.0))))


def _crowd(random: Random, theme: Theme) -> list[Step]:
    """Quick async tasks that come at once, and more of them when it is known how quick they are: they stand in line for
    a place (run/slot.py)."""
    moment = _moment(random, theme, 0.5)
    some = replace(theme, names=("later",), seconds=(0.0002, 0.0002, 0.002), keys=(None,) * 12 + ("red",))
    sizes = [(moment, random.randint(1, 4)), (moment + 0.3, random.randint(5, 30))]
    return [
        Step(round(at, 3), "send", (replace(_task(random, f"q{wave}{number:02}", some), unique_key=None),))
        for wave, (at, size) in enumerate(sizes)
        for number in range(size)
    ]


def _task(random: Random, task_id: str, theme: Theme) -> TaskSpec:
    return TaskSpec(
        id=task_id, name=random.choice(theme.names),
        seconds=round(random.choice(theme.seconds) * (0.5 + random.random()), 4),
        behaviour=random.choice(theme.behaviours), policy=TaskPolicy(**random.choice(theme.policies)),
        listens=random.random() < 0.7, exclusive_key=random.choice(theme.keys),
        unique_key=random.choice((None, None, None, None, None, "one")),
    )  # fmt: skip


def _fault(random: Random, theme: Theme) -> Step:
    seconds = random.choice((0.0, 0.01, 0.1, 1.0, 3.0, 6.0, 9.0)) * theme.lasts / 9.0
    passes, reads = random.choice((0, 0, 0, 1, 2, 5)), random.random() < 0.25
    facts = (random.randrange(8), random.choice(theme.where), random.choice(theme.faults), seconds, passes, reads)
    return Step(_moment(random, theme), "fault", facts)


def _other(random: Random, tasks: list[TaskSpec], flows: list[FlowSpec], theme: Theme) -> Step:
    kind, place, task = random.choice(theme.others), random.randrange(8), random.choice(tasks).id
    facts: tuple[Any, ...]
    match kind:
        case "kill_child":
            facts = (place, random.randrange(4))
        case "kill_worker":
            facts = (place, random.choice((0.0, 0.1, 2.0, 8.0)))
        case "stop_worker":
            facts = (place, random.choice((0.5, 3.0, 4.5, 5.5, 6.0, 7.0, 9.0, theme.lasts)))
        case "stutter":
            firsts = (2.5, 3.4, 3.5, 3.6) if theme.is_rich else (1.0, 2.5, 4.0, 4.7)
            facts = (place, random.choice(firsts), random.choice((5.0, 8.0, 12.0)))
        case "late_verdict":
            facts = (place, random.choice((4.5, 5.0, 5.5)), random.choice((1.0, 2.0, 3.0)))
        case "cut_off":
            facts = (place, random.choice((4.0, 6.0, 8.0)))
        case "cancel_and_kill":
            facts = (place, task)
        case "outage" | "blocked":
            facts = (random.choice((0.1, 1.0, 4.0, 8.0, theme.lasts)),)
        case "set_clock":
            facts = (random.choice((-20.0, -6.0, -1.0, 1.0, 6.0, 20.0)),)
        case "drain":
            facts = (place, random.choice((0.0, 0.5, 3.0)))
        case "pause" | "cancel_flow" | "lock_flow" | "retry_flow":
            facts = (random.choice(flows).id if flows else "", random.choice((0.5, 2.0, 6.0)))
        case _:
            facts = (task,)
    return Step(_moment(random, theme), kind, facts)
