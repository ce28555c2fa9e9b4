"""A process that sends: producer.py [--crash-at POINT] [--die] COUNT NAMES. Prints each id that enqueue() returned.

`--die`: killed with SIGKILL right after the last one returned.
"""

import argparse
import os
import signal

from ground import make_app

from everbeat.testing import arm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--crash-at")
    parser.add_argument("--die", action="store_true")
    parser.add_argument("count", type=int)
    parser.add_argument("names", help="separated by commas; sent in turn")
    asked = parser.parse_args()
    if asked.crash_at:
        point, _, passes = asked.crash_at.partition(":")
        arm(point, after=int(passes or 0))
    app, names = make_app(), asked.names.split(",")
    for number in range(asked.count):
        handle = app.tasks[names[number % len(names)]].enqueue()
        os.write(1, f"{handle.id}\n".encode())
    if asked.die:
        os.kill(os.getpid(), signal.SIGKILL)


main()
