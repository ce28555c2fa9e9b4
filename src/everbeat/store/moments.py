"""Between the store's microseconds UTC and aware datetimes."""

from datetime import UTC, datetime

_EARLIEST = round(datetime(1, 1, 2, tzinfo=UTC).timestamp()) * 1_000_000
_LATEST = round(datetime(9999, 12, 30, tzinfo=UTC).timestamp()) * 1_000_000


def moment(us: int) -> datetime:
    """Cut to what a datetime can hold: a task sent for the year 12000 must not spoil a list, nor a time that is no
    number because a hand wrote it, which becomes the first moment there is."""
    if not isinstance(us, int | float):
        us = _EARLIEST
    return datetime.fromtimestamp(min(max(us, _EARLIEST), _LATEST) / 1e6, UTC)


def moment_or_none(us: int | None) -> datetime | None:
    return None if us is None else moment(us)


def micros(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1_000_000)
