"""`python integrity_probe.py DATABASE SECONDS`: run the integrity check in a process of its own; a JSON value per line.

A process because the check must be cut when its time is up, and SQLite before 3.41 can not be interrupted while it
walks the pages; because it maps the file, which ends whoever reads behind the end of one that was cut short; and
because closing a file here can not drop anybody's locks (PROTOCOL 11). It reads only, and ends without closing its
connection: closing the last one would write the log into a database that may be damaged.

Imports nothing of Everbeat, so that it starts in a few milliseconds.
"""

import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

EVERYTHING = 2**31 - 1
"""The check ends by itself after so many findings; by default after a hundred, which may all be harmless ones."""


def main() -> int:
    path, seconds = Path(sys.argv[1]), float(sys.argv[2])
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)  # should whoever waits for us be gone
    try:  # not mode=ro: the check of a file that is opened so leaves out the rules of its rows
        connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=seconds)
        connection.execute("PRAGMA query_only=1")
        connection.execute("PRAGMA mmap_size=68719476736")
        connection.execute("PRAGMA cache_size=-200000")
        for (finding,) in connection.execute(f"PRAGMA integrity_check({EVERYTHING})"):
            say({"finding": finding})
    except sqlite3.Error as error:
        say({"error": str(error), "code": getattr(error, "sqlite_errorcode", 0)})
    say({"end": True})
    return 0


def say(value: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    os._exit(main())
