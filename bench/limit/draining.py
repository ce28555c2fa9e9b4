"""Rows that are started and settled, in batches of a given size."""

from collections.abc import Iterator, Sequence
from itertools import count as numbers

from bench.limit.sending import together
from bench.limit.writes import Writer


def drain(writers: Sequence[Writer], batch: float) -> None:
    """All that is ready, by all connections at the same time."""
    together([lambda writer=writer: _drain(writer, batch) for writer in writers])


def _drain(writer: Writer, batch: float) -> None:
    held: list[int] = []
    for size in sizes(batch):
        held = writer.turn(held, size)
        if not held:
            return


def sizes(batch: float) -> Iterator[int]:
    """Whole numbers that are `batch` on the average."""
    for number in numbers(1):
        yield max(1, round(number * batch) - round((number - 1) * batch))
