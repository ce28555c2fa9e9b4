"""What is to be written together, in several transactions if somebody has locked a part of it (PROTOCOL 35).

A person who left a transaction open may hold a workflow, or a task, for as long as a lunch takes. What reapers write
must not wait with it. So a transaction that meets a lock is repeated in halves, plain tasks first, without patience,
until what is locked stands alone. Tasks of one workflow are never parted: their lock is one.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from everbeat.store.transaction import Locked

T = TypeVar("T")
R = TypeVar("R")

MOST_LOCKED = 16
"""After so many nothing else is tried: whoever has locked these has locked them all."""


def in_lots(
    items: Sequence[T],
    workflow_of: Callable[[T], str | None],
    write: Callable[[Sequence[T], bool], Sequence[R]],
    locked: Callable[[T], R],
    *,
    hurries: bool = False,
) -> list[R]:
    """What became of each, in order. `write` writes some, all or none; its second argument says whether it is not to
    wait for locks. `locked` says what became of one that could not be written for a lock."""
    written = _try(write, items, hurries)
    if written is not None:
        return list(written)
    became: dict[int, R] = {}
    parts = [part for part in reversed(_lots(items, workflow_of)) if part]
    found_locked = 0
    while parts:
        part = parts.pop()
        places = [place for lot in part for place in lot]
        wanted = [items[place] for place in places]
        is_hopeless = found_locked == MOST_LOCKED
        written = None if is_hopeless else _try(write, wanted, True)
        if written is not None:
            became |= zip(places, written, strict=True)
        elif len(part) > 1 and not is_hopeless:
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]
        else:
            found_locked += not is_hopeless
            became |= {place: locked(item) for place, item in zip(places, wanted, strict=True)}
    return [became[place] for place in range(len(items))]


def _try(write: Callable[[Sequence[T], bool], Sequence[R]], items: Sequence[T], hurries: bool) -> Sequence[R] | None:
    """None: somebody has locked something of it."""
    try:
        return write(items, hurries)
    except Locked:
        return None


def _lots(items: Sequence[T], workflow_of: Callable[[T], str | None]) -> tuple[list[list[int]], list[list[int]]]:
    """The places of plain tasks, each by itself, and those of each workflow."""
    plain: list[list[int]] = []
    flows: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        workflow_id = workflow_of(item)
        if workflow_id is None:
            plain.append([place])
        else:
            flows.setdefault(workflow_id, []).append(place)
    return plain, list(flows.values())
