"""What is known of the sessions that workers hold at their database, and of those who seem to have lost theirs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A worker that counts as alive, and its session."""

    worker_id: str
    beat_seq: int
    holds: bool
    """Its session is there, and holds its lock."""
    is_connected: bool
    """A session under its name is there. Of one that was never seen holding its lock it may be unknown: False."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All workers at one moment of the database's clock."""

    at_us: int
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    worker_id: str
    beat_seq: int
    """Its last beat: one more, and it is alive."""
    missing_us: int
