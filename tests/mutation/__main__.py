"""python -m tests.mutation: take away each rule, and see that the schedule or test named in the catalogue notices.

--hunt looks for the first schedule that does, among so many, where one is named. --table writes it into
docs/guarantees.md.
"""

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.mutation.catalogue import MUTATIONS
from tests.mutation.table import write
from tests.mutation.weakening import COPY
from tests.sim.plan import Plan
from tests.sim.runner import Place, Theatre, a_place

IN_VAIN = ["--timeout", "5", "-o", "timeout_func_only=true"]
"""For a test that notices by waiting in vain, and takes a second otherwise."""
Found = tuple[str, int | None, str]
"""A mutation, the schedule that noticed it, and what was broken there. None: nothing noticed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("names", nargs="*", help="which; all if there are none")
    parser.add_argument("--hunt", type=int, default=0, metavar="N", help="look through the first N schedules")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        write()
        return 0
    names = asked.names or list(MUTATIONS)
    missed = 0
    with a_place("sqlite") as place:
        jobs = [(name, place, _seeds(name, asked)) for name in names]
        with multiprocessing.get_context("fork").Pool(asked.jobs, maxtasksperchild=1) as pool:
            for name, seed, said in pool.imap(_try, jobs):
                missed += seed is None
                sys.stdout.write(f"{name}: {'MISSED' if seed is None else seed} {said}\n")
                sys.stdout.flush()
    return 1 if missed else 0


def _seeds(name: str, asked: argparse.Namespace) -> list[int]:
    seed = MUTATIONS[name].seed
    if asked.hunt and seed is not None:
        return list(range(asked.first, asked.first + asked.hunt))
    return [] if seed is None else [seed]


def _try(job: tuple[str, Place, list[int]]) -> Found:
    """In a process of its own, which is weak from then on."""
    name, place, seeds = job
    began = time.monotonic()
    _, seed, said = _try_schedules(name, place, seeds) if seeds else _try_test(name)
    return name, seed, f"{said} ({time.monotonic() - began:.1f}s)"


def _try_schedules(name: str, place: Place, seeds: list[int]) -> Found:
    mutation = MUTATIONS[name]
    with closing(Theatre(place)) as stage:
        if len(seeds) == 1 and (found := stage.play(Plan.of(seeds[0]))[0]):
            return name, None, f"schedule {seeds[0]} breaks a promise without it: {found[0]}"
        mutation.weaken()
        for seed, found_then in stage.failures(seeds):
            return name, seed, found_then
    return name, None, f"none of {len(seeds)} schedules"


def _try_test(name: str) -> Found:
    mutation = MUTATIONS[name]
    with tempfile.TemporaryDirectory(prefix="everbeat-mutation-") as folder:
        said, copy = Path(folder) / "said", Path(folder) / "src"
        os.environ |= {COPY: str(copy), "COLUMNS": "500"}
        mutation.weaken()
        words = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not postgres"]
        words += IN_VAIN if mutation.in_vain else []
        status = (_started if copy.exists() else _forked)([*words, str(mutation.test)], said)
        reason = next((line for line in said.read_text().splitlines() if line.startswith("FAILED")), f"{status!r}")
    if status == pytest.ExitCode.TESTS_FAILED and reason.startswith("FAILED"):
        return name, 0, reason
    return name, None, f"{mutation.test}: {reason}"


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


if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a schedule
    os.execve(
        sys.executable, [sys.executable, "-m", "tests.mutation", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
    )
if __name__ == "__main__":
    sys.exit(main())
