"""make sim: run many schedules, on all cores; tell of the first that breaks a promise, shortened, and end with 1."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing

from tests.sim.plan import Plan
from tests.sim.runner import STORES, Place, Theatre, a_place

AT_ONCE = 25
"""So many schedules are given to a process at a time."""

_stage: Theatre
"""Of this process."""


def main() -> int:
    asked = _asked()
    with a_place(asked.store) as place:
        if asked.keep is not None:
            kept = [int(number) for number in asked.keep.split(",") if number.isdigit()]
            with closing(Theatre(place)) as stage:
                failure = stage.failure(Plan.of(asked.seed), kept=kept)
            sys.stdout.write(f"{failure or 'all promises were kept'}\n")
            return 1 if failure else 0
        return _play_all(asked, place)


def _play_all(asked: argparse.Namespace, place: Place) -> int:
    began, failed = time.monotonic(), 0
    for seed, found in _failures(asked, place):
        failed += 1
        if asked.go_on:
            sys.stdout.write(f"seed {seed}: {found}\n")
        else:
            with closing(Theatre(place)) as stage:
                sys.stdout.write(f"{stage.shorten(Plan.of(seed))}\n")
        if not asked.go_on:
            return 1
    sys.stdout.write(f"{asked.n} schedules in {time.monotonic() - began:.0f} s, {failed} broke a promise\n")
    return 1 if failed else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim")
    parser.add_argument("--n", type=int, default=1000, help="how many schedules")
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many processes")
    parser.add_argument("--keep", help="only these steps of it, by number")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first that fails")
    return parser.parse_args()


def _failures(asked: argparse.Namespace, place: Place) -> Iterator[tuple[int, str]]:
    """Seeds that break a promise, in order, and which."""
    last = asked.seed + asked.n
    parts = [range(first, min(first + AT_ONCE, last)) for first in range(asked.seed, last, AT_ONCE)]
    jobs = min(asked.jobs, len(parts))
    if jobs <= 1:
        with closing(Theatre(place)) as stage:
            for seeds in parts:
                yield from stage.failures(seeds)
        return
    with ProcessPoolExecutor(jobs, initializer=_enter, initargs=(place,)) as pool:
        pending = [pool.submit(_play, seeds) for seeds in parts]
        try:
            for part in pending:
                yield from part.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _enter(place: Place) -> None:
    global _stage
    _stage = Theatre(place)


def _play(seeds: range) -> list[tuple[int, str]]:
    return list(_stage.failures(seeds))


if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a schedule
    os.execve(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
sys.exit(main())
