"""Try one mutation: is it missed?

By a schedule, if a promise is broken there; by a test, if an assertion of it fails. What the weak code raises itself is
no answer: a mutation that can not even run would be noticed by everything, and prove nothing.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.mutation.weakening import COPY, Mutation
from tests.sim.plan import Plan
from tests.sim.runner import Failure, Place, Theatre

IN_VAIN = ["--timeout", "5", "-o", "timeout_func_only=true"]
"""For a test that notices by waiting in vain, and takes a second otherwise."""
ASSERTED = re.compile(r"^FAILED \S+( \S+)*? - (assert\b|AssertionError\b|Failed: DID NOT RAISE\b)")
TIMED_OUT = re.compile(r"^FAILED .* - Failed: Timeout\b")
OWN_ERRORS = re.compile(r"^(E +)?(TypeError|NameError|UnboundLocalError|AttributeError|KeyError|ImportError|"
                        r"ModuleNotFoundError|SyntaxError|LookupError)(:|$)", re.MULTILINE)  # fmt: skip
"""Of code that does not fit together, as weak code may not."""

Found = tuple[str, int | None, str]
"""A mutation, the schedule that noticed it (0: a test), and what was broken there. None: nothing noticed."""


def attempt(job: tuple[Mutation, Place, Sequence[int]]) -> Found:
    """In a process of its own, which is weak from then on."""
    mutation, place, seeds = job
    began = time.monotonic()
    seed, said = _play(mutation, place, seeds) if seeds else _test(mutation)
    return mutation.name, seed, f"{said} ({time.monotonic() - began:.1f}s)"


def shortened(job: tuple[Mutation, Place, float]) -> tuple[Failure | None, list[str]]:
    """The schedule that notices it, as short as it becomes in so many seconds; and what the steps that are left of it
    break when they are played again. In a process of its own, too."""
    mutation, place, seconds = job
    plan = Plan.of(mutation.seed or 0)
    mutation.weaken()
    with closing(Theatre(place)) as stage:
        failure = stage.shorten(plan, seconds=seconds)
        again = [] if failure is None or failure.kept is None else stage.play(plan.only(failure.kept)).broken
    return failure, again


def _play(mutation: Mutation, place: Place, seeds: Sequence[int]) -> tuple[int | None, str]:
    said = f"none of {len(seeds)} schedules"
    with closing(Theatre(place)) as stage:
        if len(seeds) == 1 and (found := stage.play(Plan.of(seeds[0])).found):
            return None, f"schedule {seeds[0]} breaks a promise without it: {found[0]}"
        mutation.weaken()
        for seed in seeds:
            played = stage.play(Plan.of(seed))
            if played.broken:
                return seed, played.broken[0]
            if played.error is not None:
                said = f"in schedule {seed} the weak code itself fails: {played.error}"
    return None, said


def _test(mutation: Mutation) -> tuple[int | None, str]:
    with tempfile.TemporaryDirectory(prefix="everbeat-mutation-") as folder:
        said, copy = Path(folder) / "said", Path(folder) / "src"
        os.environ |= {COPY: str(copy), "COLUMNS": "500"}
        mutation.weaken()
        words = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not postgres"]
        words += IN_VAIN if mutation.in_vain else []
        status = (_started if copy.exists() else _forked)([*words, str(mutation.test)], said)
        return judged(mutation, status, said.read_text(errors="replace"))


def judged(mutation: Mutation, status: int, said: str) -> tuple[int | None, str]:
    """What a test said about it."""
    reason = next((line for line in said.splitlines() if line.startswith("FAILED")), None)
    if status != pytest.ExitCode.TESTS_FAILED or reason is None:
        return None, f"{mutation.test}: {reason or repr(status)}"
    if mutation.words is not None:
        return (0, reason) if mutation.words in said else (None, f"it does not say {mutation.words!r}: {reason}")
    if own := OWN_ERRORS.search(said):
        line = said[own.start() :].partition("\n")[0]
        return None, f"the weak code itself fails: {line}: {reason}"
    is_noticed = ASSERTED.match(reason) or (mutation.in_vain and TIMED_OUT.match(reason))
    return (0, reason) if is_noticed else (None, f"no assertion failed: {reason}")


def _forked(words: list[str], said: Path) -> int:
    """In this process, which is weak."""
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
    return pytest.main(words)


def _started(words: list[str], said: Path) -> int:
    """In new processes, which find the weak copy first. They may be too weak to end with the test."""
    copy = os.environ[COPY]
    with said.open("w") as file:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *words], stdout=file, stderr=file, check=False,
            env=os.environ | {"PYTHONPATH": copy},
        )  # fmt: skip
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # gone, or not ours
            if f"{COPY}={copy}\0".encode() in environment.read_bytes():
                os.kill(int(environment.parts[2]), signal.SIGKILL)
    return ended.returncode
