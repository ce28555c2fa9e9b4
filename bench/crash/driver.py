"""Do one thing with a system, in its own environment: `python -m bench.crash.driver SYSTEM VERB ...`.

    prepare                        make the tables
    send FIRST COUNT SECONDS DEED  send so many tasks one by one; a line in `accepted` for each that was taken
    worker                         become a worker
    watch                          for each line of input, say in JSON what the store says of every accepted task

An adapter, bench/crash/with_SYSTEM.py, has these functions, each made of the system's public API and, to look, of what
its store shows:

    prepare()
    send(number, seconds, deed) -> id
    worker() -> words              the command of a worker with the settings of this variant
    states(ids) -> {id: state}     "done", "failed", "waiting" (nobody has it), "held" (somebody seems to have it) or
                                   "gone" (nothing is known of it); an id that is left out is "gone"
"""

import importlib
import json
import os
import sys
from typing import Any

from bench.crash import kit


def main() -> None:
    name, verb, *words = sys.argv[1:]
    system: Any = importlib.import_module(f"bench.crash.with_{name}")
    if verb == "prepare":
        system.prepare()
    elif verb == "send":
        first, count, seconds, deed = words
        for number in range(int(first), int(first) + int(count)):
            kit.append(kit.ACCEPTED, f"{number} {system.send(number, float(seconds), deed)}")
    elif verb == "worker":
        command = system.worker()
        os.execv(command[0], command)
    else:
        watch(system)


def watch(system: Any) -> None:
    for _ in sys.stdin:
        accepted = kit.lines(kit.ACCEPTED)
        states = system.states([key for _, key in accepted])
        print(json.dumps({number: states.get(key, "gone") for number, key in accepted}), flush=True)


if __name__ == "__main__":
    main()
