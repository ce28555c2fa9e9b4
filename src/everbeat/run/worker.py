"""A worker: one identity after another, each with its processes, its dispatcher and its loops.

The supervisor runs no user code; what it must know of the application it is told by the fork server. A life begins with
a new id, a lock and a journal, recovers what others left before it claims anything (P10), and ends by a signal, when a
burst is done, or because others declared it dead: then its processes are killed, what they had finished is offered, and
the next life begins (PROTOCOL 2).
"""

import gc
import select
import sys
from collections.abc import Callable
from contextlib import ExitStack

from everbeat.clock import SystemClock
from everbeat.model.report import RecoveryReport
from everbeat.report.log import Reporter
from everbeat.run.crew import Crew
from everbeat.run.descriptors import make_room
from everbeat.run.entry import Entry
from everbeat.run.life import Life
from everbeat.run.news import AppFacts, AppFailed
from everbeat.run.options import WorkerOptions
from everbeat.run.outfit import Surroundings
from everbeat.run.recovery import Tell
from everbeat.run.signals import Signals
from everbeat.run.unusable import AppUnusable
from everbeat.run.window import Window

Announce = Callable[[Life, RecoveryReport | None], None]
SWITCH_SECONDS = 0.00005
"""So long, at most, the thread that hears processes waits for one that makes or reads a flush. The default of the
interpreter is five times as long: the async process runs dry in it."""
YOUNG_OBJECTS = 100_000
"""So many are made before rubbish is looked for among them. What a claim is made of has no cycles, and there are dozens
for each task: at the default of 700 a busy worker looked a hundred times in a second."""


def run_worker(
    options: WorkerOptions,
    *,
    announce: Announce = lambda life, report: None,
    on_progress: Tell = lambda progress: None,
) -> int:
    """Run until a signal or the end of a burst; the exit code. `announce` is told when a life is ready to work,
    `on_progress` how far the recovery before that is. Raises AppUnusable, LimitUnusable, StoreUnavailable,
    RecoveryFailed."""
    make_room(options.processes, options.most_children)
    clock, reporter = SystemClock(), Reporter()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(YOUNG_OBJECTS)
    with Signals() as signals, ExitStack() as stack:
        window = Window(clock, reporter)
        if options.http is not None:
            stack.callback(window.open(*options.http).stop)
        crew = Crew(target=options.target, imports=options.imports, database_url=options.database_url)
        stack.callback(crew.stop)
        crew.start()
        return _live(options, Surroundings(crew, clock, reporter), signals, window, announce, on_progress)


def _live(
    options: WorkerOptions, around: Surroundings, signals: Signals, window: Window, announce: Announce,
    on_progress: Tell,
) -> int:  # fmt: skip
    """One life after the other, until the last one has ended."""
    store_id: str | None = None
    while facts := _await_app(around.crew, signals):
        with ExitStack() as stack:
            begun = Entry(options, facts, around, signals, on_progress, store_id).begin_life(stack)
            if begun is None:
                return 0
            life, report = begun
            store_id = life.outfit.store_id
            stack.enter_context(window.on(life))
            announce(life, report)
            if not life.go_on(signals):
                return 0
    return 0


def _await_app(crew: Crew, signals: Signals) -> AppFacts | None:
    """What the newest fork server says of the application; None if we were told to stop meanwhile."""
    poll = select.poll()
    poll.register(crew.fileno(), select.POLLIN)
    poll.register(signals.fileno(), select.POLLIN)
    while not signals.take():
        if crew.facts is not None:
            return crew.facts
        for news in crew.collect():
            if isinstance(news, AppFailed):
                raise AppUnusable(news.kind, news.message)
        poll.poll(0 if crew.facts else 1000)
    return None
