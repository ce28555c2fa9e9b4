"""What a worker under one id is made of: its connections, files, bell, spool, dispatcher and loops, put together."""

from contextlib import ExitStack, closing
from dataclasses import dataclass

from everbeat.clock import Clock
from everbeat.errors import StoreUnavailable
from everbeat.report.log import Reporter
from everbeat.run.crew import Crew
from everbeat.run.deadline import HeldLease
from everbeat.run.dispatcher import Dispatcher
from everbeat.run.files import files_of
from everbeat.run.heartbeat import Heartbeat
from everbeat.run.janitor import Janitor
from everbeat.run.keeper import Keeper
from everbeat.run.leases import LeaseKeeper
from everbeat.run.messenger import Messenger
from everbeat.run.profile import Profile
from everbeat.run.reaper import Reaper
from everbeat.run.recovery import Recovery
from everbeat.run.resources import Resources
from everbeat.run.scribes import Scribes
from everbeat.run.session import SessionKeeper
from everbeat.run.spool import Spool
from everbeat.run.store_watch import StoreWatch
from everbeat.store.interface import Store
from everbeat.store.open import open_store

PATIENCE = 2.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every life of a worker shares."""

    crew: Crew
    clock: Clock
    reporter: Reporter


class Outfit:
    """Everything in it is closed with the stack."""

    def __init__(
        self, profile: Profile, around: Surroundings, stack: ExitStack, *, creates_store: bool, store_id: str | None
    ) -> None:
        self.profile = profile
        self.crew, self.clock, self.reporter = around.crew, around.clock, around.reporter
        self.stack = stack
        self.store = self.open_store(create=creates_store)
        self.files = stack.enter_context(files_of(profile, self.store.state_directory))
        self.bell = stack.enter_context(closing(self.store.listen(profile.worker_id)))
        self._equip_crew()
        self.store_id = _same_store(self.store, store_id)
        self.keeper = self._make_keeper()
        self.scribes = stack.enter_context(closing(Scribes(self.store, self.store.flushes_at_once)))
        self.dispatcher = self._make_dispatcher()
        self.heartbeat = self._make_heartbeat()
        self.session = self._make_session_keeper()
        self.store_watch = self._make_store_watch()

    def open_store(self, *, create: bool = False, patience: float = PATIENCE) -> Store:
        """Each loop has a connection of its own. Only the first life may make a store that is not there."""
        store = open_store(self.profile.config, create=create, clock=self.clock, patience=patience)
        store.on_events(self.reporter.heard)
        return self.stack.enter_context(closing(store))

    def _equip_crew(self) -> None:
        profile = self.profile
        self.crew.equip(
            self.files.lock,
            self.files.journal,
            beat_seconds=profile.beat_seconds,
            worker_id=profile.worker_id,
            log_level=profile.options.log_level,
            log_format=profile.options.log_format,
            async_slots=profile.async_slots,
        )

    def _make_keeper(self) -> Keeper:
        spool = Spool(self.store.state_directory, worker_id=self.profile.worker_id, store_id=self.store_id)
        self.stack.callback(spool.close)
        return Keeper(spool, self.clock)

    def _make_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            worker_id=self.profile.worker_id,
            hostname=self.profile.host.name,
            store=self.store,
            crew=self.crew,
            keeper=self.keeper,
            journal=self.files.journal,
            staffing=self.profile.staffing,
            recovery=self.profile.config.recovery.to_policy(),
            lease=HeldLease(self.profile.lease, self.crew.deadline),
            clock=self.clock,
            scribes=self.scribes,
        )

    def _make_heartbeat(self) -> Heartbeat:
        return Heartbeat(
            worker_id=self.profile.worker_id,
            store=self.open_store(),
            dispatcher=self.dispatcher,
            recovery=self.profile.config.recovery.to_policy(),
            clock=self.clock,
            interval=self.profile.beat_seconds,
            reporter=self.reporter,
            resources=Resources(self.clock),
            files=self.files,
        )

    def _make_session_keeper(self) -> SessionKeeper:
        """It makes connections of its own from any store."""
        keeper = SessionKeeper(
            worker_id=self.profile.worker_id,
            store=self.store,
            dispatcher=self.dispatcher,
            heartbeat=self.heartbeat,
            reporter=self.reporter,
            grace_ms=self.profile.config.recovery.session_grace_ms,
        )
        self.stack.callback(keeper.close)
        return keeper

    def _make_store_watch(self) -> StoreWatch:
        return StoreWatch(
            worker_id=self.profile.worker_id,
            store=self.store,
            store_id=self.store_id,
            dispatcher=self.dispatcher,
            reporter=self.reporter,
        )

    def make_reaper(self) -> Reaper:
        config, store = self.profile.config, self.open_store()
        return Reaper(
            worker_id=self.profile.worker_id,
            store=store,
            recovery=Recovery(store, config.recovery, self.profile.host, clock=self.clock),
            config=config.recovery,
            clock=self.clock,
            reporter=self.reporter,
            unknown_after_ms=config.unknown_task_timeout_ms,
            suspects=self.session.suspects,
        )

    def make_lease_keeper(self) -> LeaseKeeper:
        patience = min(PATIENCE, self.dispatcher.lease.lease.answer_us / 1e6)
        return LeaseKeeper(
            worker_id=self.profile.worker_id,
            store=self.open_store(patience=patience),
            dispatcher=self.dispatcher,
            heartbeat=self.heartbeat,
        )

    def make_janitor(self) -> Janitor:
        config = self.profile.config.recovery
        return Janitor(worker_id=self.profile.worker_id, store=self.open_store(), config=config, clock=self.clock)

    def make_messenger(self) -> Messenger:
        slot = max(self.dispatcher.slots) + 1
        messenger = Messenger(
            application=self.profile.options.application, names=self.profile.events, worker_id=self.profile.worker_id,
            store=self.open_store(), crew=self.crew, slot=slot, clock=self.clock,
        )  # fmt: skip
        self.stack.callback(messenger.close)
        self.dispatcher.hearing.elsewhere = messenger.hear
        return messenger


def _same_store(store: Store, before: str | None) -> str:
    """A worker that takes a new id does not change to another store (PROTOCOL 8)."""
    found = store.store_id
    if before is not None and found != before:
        raise StoreUnavailable(
            f"{store.location} is another store than the one this worker was in (its id is {found}, and was {before}). "
            f"Put the right file back, or stop this worker and start it again."
        )
    return found
