"""make sim: run many schedules, tell of the first that breaks a promise, and end with 1."""

import argparse
import os
import sys
import time

from tests.sim.mutations import MUTATIONS
from tests.sim.plan import Plan
from tests.sim.runner import theatre


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim")
    parser.add_argument("--n", type=int, default=1000, help="how many schedules")
    parser.add_argument("--seed", type=int, default=1, help="of the first")
    parser.add_argument("--keep", help="only these steps of it, by number")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first that fails")
    parser.add_argument("--mutate", choices=sorted(MUTATIONS), help="without this rule of the protocol")
    asked = parser.parse_args()
    if asked.mutate:
        MUTATIONS[asked.mutate]()
    with theatre() as stage:
        if asked.keep is not None:
            kept = [int(number) for number in asked.keep.split(",") if number.isdigit()]
            failure = stage.failure(Plan.of(asked.seed), kept=kept)
            sys.stdout.write(f"{failure or 'all promises were kept'}\n")
            return 1 if failure else 0
        began, failed = time.monotonic(), 0
        for seed in range(asked.seed, asked.seed + asked.n):
            found, _ = stage.play(Plan.of(seed))
            if not found:
                continue
            failed += 1
            is_brief = asked.go_on or asked.mutate
            sys.stdout.write(f"seed {seed}: {found[0]}\n" if is_brief else f"{stage.shorten(Plan.of(seed))}\n")
            if not asked.go_on:
                return 1
        sys.stdout.write(f"{asked.n} schedules in {time.monotonic() - began:.0f} s, {failed} broke a promise\n")
    return 1 if failed else 0


if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a schedule
    os.execve(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
sys.exit(main())
