"""Which orders there are: all of them that differ, or a sample.

Two steps that do not see each other may change places without anybody noticing, so only one of such orders is run
(sleep sets: what was tried before stays asleep until something happens that it depends on).
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.isolation.stepping import Stage, Step

MakeStage = Callable[[], Stage]


@dataclass(slots=True)
class Fork:
    """A moment at which one of several can move."""

    choices: dict[str, Step]
    asleep: dict[str, Step]
    tried: list[str] = field(default_factory=list)

    def awake(self) -> list[str]:
        return [name for name in self.choices if name not in self.asleep and name not in self.tried]

    def asleep_after(self) -> dict[str, Step]:
        """Of what need not be tried any more: what is independent of the last thing that was done here."""
        done = self.choices[self.tried[-1]]
        earlier = self.asleep | {name: self.choices[name] for name in self.tried[:-1]}
        return {name: step for name, step in earlier.items() if step.is_independent_of(done)}


def every_order(make_stage: MakeStage) -> Iterator[Stage]:
    """One stage after the other, each moved to its end in another order."""
    path: list[Fork] = []
    while True:
        with made(make_stage) as stage:
            for fork in path:
                assert stage.choices().keys() == fork.choices.keys(), "the same order again went another way"
                stage.move(fork.tried[-1])
            is_new = _go_on(stage, path)
        if is_new:
            yield stage
        while path and not path[-1].awake():
            path.pop()
        if not path:
            return
        path[-1].tried.append(path[-1].awake()[0])


def _go_on(stage: Stage, path: list[Fork]) -> bool:
    """To the end. False: another order has shown what this one would."""
    while choices := stage.choices():
        fork = Fork(choices, path[-1].asleep_after() if path else {})
        if not (awake := fork.awake()):
            return False
        fork.tried.append(awake[0])
        path.append(fork)
        stage.move(awake[0])
    return True


def some_orders(make_stage: MakeStage, *, seed: str, count: int) -> Iterator[Stage]:
    """Who moves goes on for a while: few changes between many steps find more than very many do."""
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        patience = chance.choice([0.0, 0.5, 0.8])
        with made(make_stage) as stage:
            last = ""
            while choices := stage.choices():
                if last not in choices or chance.random() >= patience:
                    last = chance.choice(sorted(choices))
                stage.move(last)
        yield stage


@contextmanager
def made(make_stage: MakeStage) -> Iterator[Stage]:
    """Whatever happens, nobody is left standing with locks."""
    stage = make_stage()
    try:
        yield stage
    finally:
        stage.finish()
