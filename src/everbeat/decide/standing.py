"""Decide whether a store is still the one that a worker entered (PROTOCOL 8).

Pure. A restored backup, a copied file, a file that was moved away: the worker's own row, which only it renews, says so.
What such a store says of tasks and fences can not be trusted, so nobody may claim from it or settle in it.
"""

from everbeat.model.worker import Standing


def doubt(found: Standing, *, store_id: str, seen_beat: int) -> str | None:
    """Why it is not; None if it is. `seen_beat` is the last beat of this worker that the store has acknowledged."""
    if not found.is_same_file:
        return "the file was moved away, or another file or server is in its place"
    if found.store_id != store_id:
        return f"it is another store (its id is {found.store_id}, and was {store_id})"
    if found.beat_seq is None:
        return "it does not know this worker"
    if found.beat_seq < seen_beat:
        return (
            f"it is older than it was (beat {found.beat_seq} of this worker is its last, {seen_beat} was acknowledged)"
        )
    return None
