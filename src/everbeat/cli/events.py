"""`everbeat events`: what happened, as the store remembers it."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

from everbeat.cli import given, out, which
from everbeat.cli.grammar import Option
from everbeat.cli.outage import outlast
from everbeat.model.event import EventInfo
from everbeat.report.text import event_line
from everbeat.store.interface import Store

NOW = timedelta()
PAGE = 1000
LOOK_SECONDS = 0.25
LATE = 1000
"""So many numbers may be given before an earlier one is committed."""


def events(
    since: Annotated[
        given.Moment | None,
        Option(parser=given.moment, metavar="TIME", help="Only later ones: 10m, 2h, or an ISO time."),
    ] = None,
    task: Annotated[str | None, Option(metavar="ID", help="Only those of one task.")] = None,
    follow: Annotated[
        bool, Option("--follow", help="Wait for more until Ctrl-C; begins now unless --since says otherwise.")
    ] = False,
    db: which.Db = None,
    app: which.App = None,
    as_json: which.AsJson = False,
) -> None:
    """Print events, oldest first. With --follow, --json prints one object per line instead of an array."""
    with which.existing_store(db, app) as store:
        if follow:
            with suppress(KeyboardInterrupt):
                begins = outlast(partial(given.at, store, since or NOW))
                for event in _follow(store, begins, task):
                    out.data_line(event) if as_json else out.say(event_line(event))
            return
        found = _stored(store, given.at(store, since), task)
        if as_json:
            out.data(list(found))
        else:
            for event in found:
                out.say(event_line(event))


def _stored(
    store: Store, since: datetime | None, task: str | None, after: int = 0,
    ask: Callable[[Callable[[], Sequence[EventInfo]]], Sequence[EventInfo]] = lambda look: look(),
) -> Iterator[EventInfo]:  # fmt: skip
    """Everything that is there now, page by page."""
    while page := ask(partial(store.events, after=after, since=since, task_id=task, limit=PAGE)):
        yield from page
        after = page[-1].id


def _follow(store: Store, since: datetime | None, task: str | None) -> Iterator[EventInfo]:
    """An event is given its number before it is committed, so where several write at a time it may appear behind later
    ones: the last few are looked at again."""
    newest, told = 0, set[int]()
    seen = None
    for _ in itertools.count():
        version = outlast(store.data_version)
        if version == seen:
            time.sleep(LOOK_SECONDS)
            continue
        seen = version
        for event in _stored(store, since, task, max(0, newest - LATE), outlast):
            newest = max(newest, event.id)
            if event.id not in told:
                told.add(event.id)
                yield event
        told = {number for number in told if number > newest - LATE}
