"""Workflows that something tore: what is wrong with them, or let them go on. A reaper looks at some of them, a start-up
and a person at all."""

from typing import Protocol

from everbeat.store.interface import Store
from everbeat.store.messages import Torn


class Look(Protocol):
    def __call__(self, *, after: str, all_of_them: bool) -> Torn: ...


def mend_workflows(store: Store, *, all_of_them: bool = False) -> Torn:
    """Let them go on. `all_of_them`: also those that were set aside before."""
    return _through_all(store.mend_workflows, all_of_them=all_of_them)


def torn_workflows(store: Store, *, all_of_them: bool = False) -> Torn:
    """What `mend_workflows` would do. Changes nothing."""
    return _through_all(store.torn_workflows, all_of_them=all_of_them)


def _through_all(look: Look, *, all_of_them: bool) -> Torn:
    found = look(after="", all_of_them=all_of_them)
    while found.after:
        more = look(after=found.after, all_of_them=all_of_them)
        found = Torn(found.mended | more.mended, found.stuck | more.stuck, more.after)
    return found
