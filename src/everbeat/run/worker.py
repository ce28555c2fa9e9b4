"""A worker: one identity after another, each with its processes, its dispatcher and its loops.

The supervisor runs no user code; what it must know of the application it is told by the fork server. A life begins with
a new id, a lock and a journal, recovers what others left before it claims anything (P10), and ends by a signal, when a
burst is done, or because others declared it dead: then its processes are killed, what they had finished is offered, and
the next life begins (PROTOCOL 2).

The first life needs a store that can be opened, or one that only a frozen process keeps from it; a later one waits for
the store for as long as it takes.
"""

import json
import secrets
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

from everbeat import __version__
from everbeat.clock import Clock, SystemClock
from everbeat.config import AppConfig, SQLiteConfig
from everbeat.decide.lease import Lease
from everbeat.errors import ConfigError, StoreDamaged, StoreUnavailable
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.recovery import Progress, RecoveryReport
from everbeat.model.worker import NewWorker, QueueSetting
from everbeat.report.log import Reporter
from everbeat.run.crew import Crew
from everbeat.run.deadline import HeldLease
from everbeat.run.dispatcher import Dispatcher
from everbeat.run.elsewhere import refuse_other_machines
from everbeat.run.ground import Ground
from everbeat.run.heartbeat import Heartbeat
from everbeat.run.janitor import Janitor
from everbeat.run.journal import DEFAULT_ENTRIES, Journal
from everbeat.run.keeper import Keeper
from everbeat.run.leases import LeaseKeeper
from everbeat.run.lockfile import WorkerLock, this_host
from everbeat.run.messenger import Messenger
from everbeat.run.news import AppFacts, AppFailed
from everbeat.run.reaper import Reaper
from everbeat.run.recovery import Recovery, Tell
from everbeat.run.resources import Resources
from everbeat.run.service import Loop, Service
from everbeat.run.signals import Signals
from everbeat.run.slot import Staffing
from everbeat.run.spool import Spool
from everbeat.run.startup import Startup, halted
from everbeat.run.unblock import Unblocker
from everbeat.run.window import Window
from everbeat.store.interface import Store
from everbeat.store.open import open_store, site_of

PATIENCE = 2.0
RETRY_SECONDS = 0.25
POLL_US = 500_000
DEFAULT_ASYNC_SLOTS = 100
DISMISS_SECONDS = 10.0
LAST_WORDS_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    target: str
    processes: int
    async_slots: int | None = None
    """None: a hundred if the application has async tasks."""
    queues: tuple[str, ...] | None = None
    name: str | None = None
    imports: tuple[str, ...] = ()
    database_url: str | None = None
    burst: bool = False
    drain_timeout: float = 25.0
    frame_depth: int = 64
    log_level: str = "info"
    log_format: str = "text"
    http: tuple[str, int] | None = None
    """Where /livez, /readyz and /metrics are served."""


class StoppedMeanwhile(Exception):
    """A signal came before we were ready."""


class AppUnusable(Exception):
    """The application could not be imported: `kind` is "missing", "config", "raised" or "died"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def run_worker(
    options: WorkerOptions,
    *,
    clock: Clock | None = None,
    reporter: Reporter | None = None,
    announce: Callable[["Life", RecoveryReport | None], None] = lambda life, report: None,
    on_progress: Tell = lambda progress: None,
) -> int:
    """Run until a signal or the end of a burst; the exit code. `announce` is told when a life is ready to work,
    `on_progress` how far the recovery before that is."""
    clock, reporter = clock or SystemClock(), reporter or Reporter()
    with Signals() as signals, ExitStack() as outer:
        window = Window(clock, reporter)
        if options.http is not None:
            outer.callback(window.open(*options.http).stop)
        crew = Crew(target=options.target, imports=options.imports, database_url=options.database_url)
        outer.callback(crew.stop)
        crew.start()
        lives, store_id = 0, None
        while facts := _await_app(crew, signals):
            lives += 1
            with ExitStack() as stack:
                entry = Entry(options, crew, facts, clock, reporter, store_id, on_progress)
                begun = entry.begin_life(stack, signals, insist=lives > 1)
                if begun is None:
                    return 0
                life, report = begun
                store_id = life.store_id
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


@dataclass(frozen=True, slots=True)
class Entry:
    """The way into the store, which may be closed just now."""

    options: WorkerOptions
    crew: Crew
    facts: AppFacts
    clock: Clock
    reporter: Reporter
    store_id: str | None
    """Of the store that this worker was in before."""
    on_progress: Tell

    def begin_life(
        self, stack: ExitStack, signals: Signals, *, insist: bool
    ) -> "tuple[Life, RecoveryReport | None] | None":
        """A life that is ready to work, with its report; None if we were told to stop meanwhile. A store that can not
        be used is waited for if a process is in its way, or if we `insist`."""
        config = _config(self.facts)
        site = site_of(config)
        unblocker = Unblocker(site, config.recovery, self.clock, self.reporter)
        while not signals.take():
            with ExitStack() as attempt:
                try:
                    life = Life(self, attempt, creates_store=not insist)
                    if isinstance(config.broker, SQLiteConfig):
                        refuse_other_machines(life.store, self.clock, self.reporter, signals.are_silent_for)
                    if not signals.are_silent_for(0.0):
                        continue
                    report = life.recover(first=not insist, on_progress=self._unless_stopped(signals))
                    life.register()
                    life.begin()
                except StoppedMeanwhile:
                    continue
                except StoreDamaged as error:
                    raise halted(site, error) from error
                except StoreUnavailable as error:
                    if not unblocker.look() and not insist:
                        raise
                    self.reporter.store_unavailable("start", error)
                else:
                    stack.push(attempt.pop_all())
                    return life, report
            signals.are_silent_for(RETRY_SECONDS)
        return None

    def _unless_stopped(self, signals: Signals) -> Tell:
        """A long recovery is left where it is when we are told to stop: whoever comes next finishes it."""

        def tell(progress: Progress) -> None:
            if not signals.are_silent_for(0.0):
                raise StoppedMeanwhile
            self.on_progress(progress)

        return tell


class Life:
    """A worker under one id."""

    def __init__(self, entry: Entry, stack: ExitStack, *, creates_store: bool) -> None:
        options, facts = self.options, self.facts = entry.options, entry.facts
        self.config = _config(facts)
        self.name = options.name or socket.gethostname()
        self.worker_id = f"{self.name}-{secrets.token_hex(4)}"
        self.host = this_host()
        self.async_slots = _async_slots(options, facts)
        self._crew = entry.crew
        self._clock = entry.clock
        self._reporter = entry.reporter
        self._stack = stack
        self._services: list[Service] = []
        self._paused: list[Loop] = []
        """While the store is not the one that we entered."""
        self._version = -1
        self._told_trouble: str | None = None
        self._events: tuple[str, ...] = tuple(json.loads(facts.config_json).get("events", ()))
        """That the application subscribes to."""
        self._messenger: Messenger | None = None
        self._names = (*facts.sync_names, *facts.async_names)
        """As the store has them."""
        self.store = self.open_store(create=creates_store)
        self._keeps_files = False
        """Whether lock and journal stay: as the proof of our end, and the record of what had begun."""
        self._make_files(self.store.state_directory)
        self._bell = stack.enter_context(closing(self.store.listen(self.worker_id)))
        self._crew.equip(
            self._lock,
            self._journal,
            beat_seconds=self._interval,
            worker_id=self.worker_id,
            log_level=options.log_level,
            log_format=options.log_format,
        )
        self.store_id = _same_store(self.store, entry.store_id)
        spool = Spool(self.store.state_directory, worker_id=self.worker_id, store_id=self.store_id)
        stack.callback(spool.close)
        self._keeper = Keeper(self._crew, spool, self._clock)
        lease = HeldLease(_lease(self.config), self._crew.deadline)
        self.dispatcher = Dispatcher(
            worker_id=self.worker_id,
            hostname=self.host.name,
            store=self.store,
            crew=self._crew,
            keeper=self._keeper,
            journal=self._journal,
            staffing=self._staffing(),
            recovery=self.config.recovery.to_policy(),
            lease=lease,
            clock=self._clock,
        )
        self._heartbeat = Heartbeat(
            worker_id=self.worker_id,
            store=self.open_store(),
            dispatcher=self.dispatcher,
            recovery=self.config.recovery.to_policy(),
            clock=self._clock,
            interval=self._interval,
            reporter=self._reporter,
            resources=Resources(self._clock),
        )

        self._ground = Ground(
            worker_id=self.worker_id,
            store=self.store,
            store_id=self.store_id,
            dispatcher=self.dispatcher,
            reporter=self._reporter,
        )

    def _make_files(self, directory: Path) -> None:
        options = self.options
        try:
            self._lock = WorkerLock.create(directory, self.worker_id)
            self._stack.callback(lambda: self._lock.close(unlink=not self._keeps_files))
            self._journal = Journal.create(
                directory,
                self.worker_id,
                boot_id=self.host.boot_id,
                slots=3 + 2 * max(1, options.processes),  # the last one is for subscribers
                entries=max(DEFAULT_ENTRIES, 2 * (self.async_slots + 2 * options.processes * options.frame_depth)),
            )
            self._stack.callback(lambda: self._journal.close(unlink=not self._keeps_files))
        except OSError as error:
            raise StoreUnavailable(f"can not make the files of a worker in {directory}: {error.strerror}") from error

    def recover(self, *, first: bool, on_progress: Tell) -> RecoveryReport | None:
        """See to the store and recover what others left, before anybody counts on us. A later life of this process has
        seen to the store already."""
        recovery, actor = self.config.recovery, f"startup/{self.worker_id}"
        if not first:
            self._subscribe()
            return Recovery(self.store, recovery, self.host, clock=self._clock).run(actor=actor)
        return Startup(
            store=self.store,
            config=recovery,
            me=self.host,
            clock=self._clock,
            reporter=self._reporter,
            actor=actor,
            on_whole=self._subscribe,
            on_progress=on_progress,
        ).run()

    def _subscribe(self) -> None:
        if self._events:
            self.store.subscribe(self._events)

    def register(self) -> None:
        worker = NewWorker(
            id=self.worker_id,
            name=self.name,
            host=self.host,
            lock=self._lock.identity,
            queues=self.options.queues,
            task_names=self._names,
            processes=self.options.processes,
            async_slots=self.async_slots,
            beat_interval_ms=round(self._interval * 1000),
            exclusive_lease_ms=self.config.recovery.exclusive_lease_ms,
            version=__version__,
            settings=tuple(QueueSetting(**asdict(queue)) for queue in self.config.queues),
        )
        try:
            self._keeps_files = True
            self.store.register(worker)
        except StoreUnavailable as error:
            self._keeps_files = error.maybe_stored
            raise

    def begin(self) -> None:
        """Start the loops. Nothing is claimed before what others left is recovered (P10)."""
        self._stack.callback(self._stop_services)
        self._serve(self._heartbeat)
        recovery, store = self.config.recovery, self.open_store()
        reaper = Reaper(
            worker_id=self.worker_id,
            store=store,
            recovery=Recovery(store, recovery, self.host, clock=self._clock),
            config=recovery,
            clock=self._clock,
            reporter=self._reporter,
            unknown_after_ms=self.config.unknown_task_timeout_ms,
        )
        self._serve(reaper)
        self._serve(self._keeper)
        self._serve(
            LeaseKeeper(
                worker_id=self.worker_id,
                store=self.open_store(patience=min(PATIENCE, self.dispatcher.lease.lease.answer_us / 1e6)),
                dispatcher=self.dispatcher,
                heartbeat=self._heartbeat,
            )
        )
        self._serve(Janitor(worker_id=self.worker_id, store=self.open_store(), config=recovery, clock=self._clock))
        if self._events:
            self._serve_events()

    def _serve_events(self) -> None:
        slot = max(self.dispatcher.slots) + 1
        self._messenger = Messenger(
            names=self._events, store=self.open_store(), crew=self._crew, slot=slot, clock=self._clock
        )
        self._stack.callback(self._messenger.close)
        self.dispatcher.elsewhere = self._messenger.hear
        self._serve(self._messenger)

    def _serve(self, loop: Loop) -> None:
        self._services.append(Service(loop, self._reporter))
        self._services[-1].start()

    def _stop_services(self, loops: Sequence[Loop] | None = None) -> None:
        """Those of these loops, or all."""
        for service in [service for service in self._services if loops is None or service.loop in loops]:
            service.stop()
            self._services.remove(service)

    def go_on(self, signals: Signals) -> bool:
        """Turn the dispatcher until this life ends. True: it was declared dead, and another one should begin."""
        poll = select.poll()
        for fd in (self._crew.fileno(), self._bell.fileno(), signals.fileno()):
            poll.register(fd, select.POLLIN)
        if self._messenger is not None:
            poll.register(self._messenger.fileno(), select.POLLIN)
        stops, asked_at = 0, self._clock.mono_us()
        while not self.dispatcher.is_drained:
            rung = poll.poll(min(self.dispatcher.wait_us(), POLL_US) / 1000)
            if any(fd == self._bell.fileno() for fd, _ in rung):
                if self._bell.clear():
                    self.dispatcher.heed()
                self.dispatcher.wake()
            if self._messenger is not None and any(fd == self._messenger.fileno() for fd, _ in rung):
                self._messenger.turn()
            if self._clock.mono_us() - asked_at >= POLL_US:
                asked_at = self._clock.mono_us()
                self._look_for_changes()
            if asked := signals.take():
                stops += asked
                self.dispatcher.drain(0 if stops > 1 else round(self.options.drain_timeout * 1_000_000))
            self.dispatcher.tick()
            if (self._heartbeat.is_declared_dead or self.dispatcher.is_fenced) and self._stands():
                self._end(fenced=True, patience=0.0)
                return not stops
            if self.options.burst and self.dispatcher.is_idle:
                self.dispatcher.drain(0)
        self._end(fenced=False, patience=0.0 if stops > 1 else LAST_WORDS_SECONDS)
        return False

    def _look_for_changes(self) -> None:
        """The slow poll under the bell; and, now and then, a look at processes that do not answer."""
        self._tell_of_outage()
        if not self._stands():
            return
        try:
            if self.dispatcher.staffing.names != frozenset(self._names):
                names = tuple(sorted(self.dispatcher.staffing.names))
                self.store.renew_names(self.worker_id, names)
                self._names = names
            version = self.store.data_version()
        except StoreUnavailable as error:
            self._reporter.store_unavailable("dispatcher", error)
            return
        if version != self._version:
            self._version = version
            self.dispatcher.wake()
            self.dispatcher.heed()
        self.dispatcher.note_unresponsive()
        if self._messenger is not None:
            self._messenger.turn()

    def _stands(self) -> bool:
        """Whether the store is the one that we entered, as far as can be told. If it is not, only the processes are
        served: no loop may write to it, and nobody declared us dead."""
        try:
            stands = self._ground.look()
        except StoreUnavailable as error:
            self._reporter.store_unavailable("dispatcher", error)
            return not self.dispatcher.is_displaced
        if not stands and not self._paused:
            self._heartbeat.is_declared_dead = self.dispatcher.is_fenced = False
            self._paused = [service.loop for service in self._services if service.loop is not self._keeper]
            self._stop_services(self._paused)
        elif stands and self._paused:
            paused, self._paused = self._paused, []
            for loop in paused:
                self._serve(loop)
        return stands

    def _tell_of_outage(self) -> None:
        """While the store is away this is the only place where it can be said."""
        if self.dispatcher.store_away_us:
            self._reporter.store_unavailable("dispatcher", StoreUnavailable(self.dispatcher.tally.last_error or ""))
        trouble = self._keeper.spool.trouble
        if trouble != self._told_trouble and trouble is not None:
            self._reporter.warn(event.SPOOL_FULL, reason=trouble, kept=len(self._keeper.spool))
        self._told_trouble = trouble

    def _end(self, *, fenced: bool, patience: float) -> None:
        """Commit the goodbye, then let go of what proves us alive (PROTOCOL 10). `patience` is for subscribers who are
        still to be told of something."""
        self._stop_services()
        self.dispatcher.dismiss()
        give_up = time.monotonic() + DISMISS_SECONDS
        while not self.dispatcher.is_dismissed and time.monotonic() < give_up:
            self._pass_time(0.1)
        self.dispatcher.keep_rest()
        if self.dispatcher.is_displaced:
            return
        try:
            self._say_goodbye(fenced=fenced)
            owns_nothing = not self.store.owned_by(self.worker_id, limit=1)
            self._keeps_files = not (owns_nothing and self.dispatcher.is_dismissed)
            if self._messenger is not None:
                self._messenger.finish(patience, lambda: self._pass_time(0.02))
        except StoreUnavailable as error:
            self._reporter.store_unavailable("goodbye", error)

    def _pass_time(self, seconds: float) -> None:
        select.select([self._crew.fileno()], [], [], seconds)
        self.dispatcher.tick()

    def _say_goodbye(self, *, fenced: bool) -> None:
        if fenced:
            facts = {"refused": self.dispatcher.tally.refused}
            self.store.announce([Event(name=event.WORKER_FENCED, worker_id=self.worker_id, facts=facts)])
        else:
            self.store.retire(self.worker_id, {"completed": self.dispatcher.tally.completed})

    @property
    def _interval(self) -> float:
        recovery = self.config.recovery
        return min(recovery.runner_heartbeat_interval_ms, recovery.claimer_heartbeat_interval_ms) / 1000

    def _staffing(self) -> Staffing:
        queues, memory = self.options.queues, self.config.max_memory_per_child_mb
        return Staffing(
            processes=self.options.processes,
            async_slots=self.async_slots,
            sync_names=frozenset(self.facts.sync_names),
            async_names=frozenset(self.facts.async_names),
            queues=None if queues is None else frozenset(queues),
            frame_depth=self.options.frame_depth,
            max_tasks=self.config.max_tasks_per_child,
            max_memory=None if memory is None else memory << 20,
        )

    def open_store(self, *, create: bool = False, patience: float = PATIENCE) -> Store:
        """Each loop has a connection of its own. Only the first life may make a store that is not there."""
        store = open_store(self.config, create=create, clock=self._clock, patience=patience)
        store.on_events(self._reporter.heard)
        return self._stack.enter_context(closing(store))


def _config(facts: AppFacts) -> AppConfig:
    config = AppConfig.from_facts(json.loads(facts.config_json))
    if config.eager:
        raise ConfigError("eager is for tests: tasks run where they are sent, so a worker would never see one")
    return config


def _same_store(store: Store, before: str | None) -> str:
    """A worker that takes a new id does not change to another store (PROTOCOL 8)."""
    found = store.store_id
    if before is not None and found != before:
        raise StoreUnavailable(
            f"{store.location} is another store than the one this worker was in (its id is {found}, and was {before}). "
            f"Put the right file back, or stop this worker and start it again."
        )
    return found


def _lease(config: AppConfig) -> Lease:
    lease = Lease(config.recovery.exclusive_lease_ms * 1000)
    problem = lease.problem()
    if problem is not None:
        raise ConfigError(f"exclusive_lease_ms ({config.recovery.exclusive_lease_ms}): {problem}")
    return lease


def _async_slots(options: WorkerOptions, facts: AppFacts) -> int:
    if options.async_slots is not None:
        return options.async_slots
    return DEFAULT_ASYNC_SLOTS if facts.async_names else 0
