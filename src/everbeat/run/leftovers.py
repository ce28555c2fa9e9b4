"""Remove the files of workers that nobody will ask about.

A worker that was killed between making its lock file and entering the store left two files that no row names. While the
lock is seized here its maker can not be alive, so what the store does not know then it never will.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from everbeat.run.lockfile import seize
from everbeat.run.replay import has_spool


def remove_leftovers(directory: Path, is_known: Callable[[str], bool]) -> None:
    """`is_known` says whether the store has a row for a worker id; asked while its lock is seized."""
    for path in sorted(directory.glob("worker-*.lock")):
        with seize(path) as worker_id, suppress(OSError):  # another user's
            if worker_id is not None and not has_spool(path) and not is_known(worker_id):
                path.with_suffix(".journal").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
