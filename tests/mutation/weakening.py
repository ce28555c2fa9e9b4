"""How a rule of the protocol is taken away. Something must notice every one of them, or the rule would not be proved.

Each weakens the code of this process, or of every process that a test starts, and nothing else: there is no switch in
what users run. A mutation names what it weakens; where that is not there any more it fails, instead of proving nothing.
"""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import everbeat

COPY = "TESTS_MUTATION_COPY"
"""A directory for a weak copy of our source, which is there while a test is being tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    weaken: Callable[[], None]
    rule: str
    seed: int | None
    test: str | None
    in_vain: bool
    """What the test waits for never comes: it fails when its time is up."""
    words: str | None
    """What the failure says where it is no assertion: an error, but the one that the rule is there to prevent."""

    @property
    def name(self) -> str:
        return self.weaken.__name__

    @property
    def what(self) -> str:
        return (self.weaken.__doc__ or "").strip()


FOUND: dict[str, Mutation] = {}


def mutation(
    rule: str, *, seed: int | None = None, test: str | None = None, in_vain: bool = False, words: str | None = None
) -> Callable[[Callable[[], None]], Any]:
    """`rule`: its number in the protocol. `seed` is a schedule of the simulation that breaks a promise without it; or
    `test` is a test that fails."""

    def keep(weaken: Callable[[], None]) -> Callable[[], None]:
        FOUND[weaken.__name__] = Mutation(weaken=weaken, rule=rule, seed=seed, test=test, in_vain=in_vain, words=words)
        return weaken

    return keep


def put(target: Any, name: str, value: Any) -> None:
    if name not in vars(target):
        raise LookupError(f"{target} has no {name}: this mutation weakens nothing")
    setattr(target, name, value)


def reword(module: Any, name: str, old: str, new: str) -> None:
    """A statement, or each of several, without a part of it."""
    said = getattr(module, name)
    several = said if isinstance(said, tuple) else (said,)
    if not all(old in one for one in several):
        raise LookupError(f"{module.__name__}.{name} does not say {old!r}: this mutation weakens nothing")
    reworded = tuple(one.replace(old, new) for one in several)
    put(module, name, reworded if isinstance(said, tuple) else reworded[0])


def everywhere(function: Any, instead: Any) -> None:
    """In every module of ours that knows it by its name."""
    name = function.__name__
    knowing = [module for title, module in sys.modules.items()
               if title.startswith("everbeat.") and vars(module).get(name) is function]  # fmt: skip
    if not knowing:
        raise LookupError(f"nobody knows {name}: this mutation weakens nothing")
    for module in knowing:
        setattr(module, name, instead)


def retell(module: Any, old: str, new: str) -> None:
    """A piece of the source of a module, for whoever asks the module for what is in it."""
    path = Path(module.__file__)
    exec(compile(_without(path, old, new), path, "exec"), vars(module))


def rewrite(module: str, old: str, new: str) -> None:
    """A piece of the source, for every process that the test starts and for the test itself: in a copy of the package,
    which they find before the real one."""
    source, copy = Path(everbeat.__file__).parent, Path(os.environ[COPY]) / "everbeat"
    if not copy.exists():
        shutil.copytree(source, copy)
    weak = _without(copy / module, old, new)
    compile(weak, module, "exec")  # one that can not even be read would be noticed by everything
    (copy / module).write_text(weak)


def _without(path: Path, old: str, new: str) -> str:
    said = path.read_text()
    if old not in said:
        raise LookupError(f"{path} does not say {old!r}: this mutation weakens nothing")
    return said.replace(old, new)
