"""Lock files and journals that nobody needs any more.

A worker that is gone leaves them behind: as the proof of its end, and as the record of what had begun. They are removed
when it owns nothing any more; so are those of a process that was killed before it could enter the store. While the lock
is seized here its maker can not be alive, so what the store does not know then it never will. The journal goes first:
while there is a lock, somebody comes back for the rest.
"""

from contextlib import suppress
from pathlib import Path

from everbeat.model.worker import WorkerStatus
from everbeat.run.journal import Journal
from everbeat.run.lockfile import is_held, seize
from everbeat.run.replay import has_spool
from everbeat.store.interface import Store


def tidy(store: Store) -> list[str]:
    """The names of the lock files that were removed, each with its journal."""
    removed: list[str] = []
    for path in sorted(store.state_directory.glob("worker-*.lock")):
        with seize(path) as worker_id, suppress(OSError):  # another user's
            if worker_id is not None and not has_spool(path) and not _is_needed(store, worker_id, path):
                path.with_suffix(".journal").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
                removed.append(path.name)
    return removed


def lost_commits(store: Store) -> list[str]:
    """Journals that tell of runs the store knows nothing of, in words. Whoever is alive may have committed since we
    looked, so only what the dead left behind counts."""
    said: list[str] = []
    for path in sorted(store.state_directory.glob("worker-*.journal")):
        facts = None if is_held(path.with_suffix(".lock")) else Journal.read(path)
        if facts is not None and store.is_behind(facts.begun):
            said.append(
                f"commits were lost: worker {facts.worker_id} began tasks that the store knows nothing of. "
                f"Its write-ahead log was removed, or an older copy was put in its place"
            )
    return said


def _is_needed(store: Store, worker_id: str, path: Path) -> bool:
    return any(
        worker.status is WorkerStatus.ALIVE or worker.held > 0
        for worker in store.workers()
        if worker.id == worker_id or worker.lock.path == str(path)
    )
