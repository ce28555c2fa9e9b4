"""python -m tests.mutation: take away each rule, and see that the schedule or test named in the catalogue notices.

--hunt looks for the first schedule that does, among so many, also where a test is named. --shorten makes the schedule
of one short, in so many seconds, and plays what is left of it again. --table writes the table in docs/guarantees.md.
"""

import argparse
import multiprocessing
import os
import sys

from tests.mutation.catalogue import MUTATIONS
from tests.mutation.table import write
from tests.mutation.trying import attempt, shortened
from tests.sim.runner import a_place


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("names", nargs="*", help="which; all if there are none")
    parser.add_argument("--hunt", type=int, default=0, metavar="N", help="look through the first N schedules")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--shorten", type=float, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        write()
        return 0
    names = asked.names or list(MUTATIONS)
    missed = 0
    with a_place("sqlite") as place:
        jobs = [(MUTATIONS[name], place, _seeds(name, asked)) for name in names]
        with multiprocessing.get_context("fork").Pool(asked.jobs, maxtasksperchild=1) as pool:
            if asked.shorten is not None:
                failure, again = pool.apply(shortened, [(MUTATIONS[names[0]], place, asked.shorten)])
                sys.stdout.write("\n".join([str(failure), "again:", *(f"  {found}" for found in again), ""]))
                return 0 if again else 1
            for name, seed, said in pool.imap(attempt, jobs):
                missed += seed is None
                sys.stdout.write(f"{name}: {'MISSED' if seed is None else seed} {said}\n")
                sys.stdout.flush()
    return 1 if missed else 0


def _seeds(name: str, asked: argparse.Namespace) -> list[int]:
    if asked.hunt:
        return list(range(asked.first, asked.first + asked.hunt))
    seed = MUTATIONS[name].seed
    return [] if seed is None else [seed]


if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a schedule
    os.execve(
        sys.executable, [sys.executable, "-m", "tests.mutation", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
    )
if __name__ == "__main__":
    sys.exit(main())
