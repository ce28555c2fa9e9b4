"""A worker under one id: from its recovery of what others left to its goodbye.

It recovers before anybody counts on it (P10), registers, starts its loops, and turns its dispatcher until a signal, the
end of a burst, or its being declared dead (PROTOCOL 2).
"""

import select
from collections.abc import Callable

from everbeat.errors import SchemaMismatch, StoreUnavailable
from everbeat.model import event
from everbeat.model.event import Event
from everbeat.model.report import RecoveryReport
from everbeat.run.messenger import Messenger
from everbeat.run.outfit import Outfit
from everbeat.run.recovery import Recovery, Tell
from everbeat.run.services import Services
from everbeat.run.signals import Signals
from everbeat.run.startup import Startup
from everbeat.run.unusable import AppUnusable
from everbeat.store.interface import Store

GATHER_MS = 1
"""For so long, at most, what processes say is left to gather while it could not be passed on."""
POLL_US = 500_000
DISMISS_US = 10_000_000
LAST_WORDS_SECONDS = 5.0
FOREVER_US = 1 << 60
OUTGROWN = (
    "it was upgraded to tables that this version of Everbeat can not work with. What runs is finished, nothing more is "
    "claimed. Upgrade Everbeat and start the worker again"
)


class Life:
    def __init__(self, outfit: Outfit) -> None:
        self.outfit = outfit
        self.profile = outfit.profile
        self.store = outfit.store
        self.dispatcher = outfit.dispatcher
        self._clock = outfit.clock
        self._reporter = outfit.reporter
        self._services = Services(outfit.reporter)
        self._messenger: Messenger | None = None
        self._names = outfit.profile.names
        """As the store has them."""
        self._version = -1
        self._told_trouble: str | None = None
        self._is_outgrown = False

    def open_store(self) -> Store:
        """For somebody who shows this life."""
        return self.outfit.open_store()

    # -- its beginning ----------------------------------------------------------------------------------------------

    def recover(self, *, first: bool, on_progress: Tell) -> RecoveryReport | None:
        """See to the store and recover what others left, before anybody counts on us. A later life of this process has
        seen to the store already."""
        recovery, host = self.profile.config.recovery, self.profile.host
        actor = f"startup/{self.profile.worker_id}"
        if not first:
            self._subscribe()
            return Recovery(self.store, recovery, host, clock=self._clock).run(actor=actor)
        return Startup(
            store=self.store,
            config=recovery,
            me=host,
            clock=self._clock,
            reporter=self._reporter,
            actor=actor,
            on_whole=self._subscribe,
            on_progress=on_progress,
        ).run()

    def _subscribe(self) -> None:
        if self.profile.events:
            self.store.subscribe(self.profile.options.application, self.profile.events)

    def register(self) -> None:
        """From here on others count on us."""
        self.outfit.session.hold()
        self.outfit.files.stay = True
        self.outfit.stack.callback(self._withdraw)
        try:
            self.store.register(self.profile.as_registered(self.outfit.files.lock.identity, self._names))
        except StoreUnavailable as error:
            self.outfit.files.stay = error.maybe_stored
            raise

    def _withdraw(self) -> None:
        """A worker that was entered and never turned holds nothing: its row must not look alive until somebody finds
        its lock free. If the store can not be told, that is what remains."""
        if self.dispatcher.turns or not self.outfit.files.stay:
            return
        try:
            self.store.retire(self.profile.worker_id)
            self.outfit.files.stay = False
        except StoreUnavailable as error:
            self._reporter.store_unavailable("goodbye", error)

    def begin(self) -> None:
        """Start the loops. Nothing is claimed before what others left is recovered (P10)."""
        self.outfit.stack.callback(self._services.stop)
        self._services.start(self.outfit.session)
        self._services.start(self.outfit.heartbeat)
        self._services.start(self.outfit.make_reaper())
        self._services.start(self.outfit.keeper)
        self._services.start(self.outfit.make_lease_keeper())
        self._services.start(self.outfit.make_janitor())
        if self.profile.events:
            self._messenger = self.outfit.make_messenger()
            self._services.start(self._messenger)

    # -- its days ---------------------------------------------------------------------------------------------------

    def go_on(self, signals: Signals) -> bool:
        """Turn the dispatcher until this life ends. True: it was declared dead, and another one should begin."""
        urgent = select.poll()
        for fd in (self.outfit.scribes.fileno(), signals.fileno()):
            urgent.register(fd, select.POLLIN)
        poll = self._poll_on(signals)
        stops, asked_at, hopeless = 0, self._clock.mono_us(), None
        while not self.dispatcher.is_drained:
            if self.dispatcher.may_let_gather:
                urgent.poll(GATHER_MS)
            rung = {fd for fd, _ in poll.poll(min(self.dispatcher.wait_us(), POLL_US) / 1000)}
            self._hear(rung)
            if self._clock.mono_us() - asked_at >= POLL_US:
                asked_at = self._clock.mono_us()
                self._look_for_changes()
            if asked := signals.take():
                stops += asked
                self.dispatcher.drain(0 if stops > 1 else round(self.profile.options.drain_timeout * 1_000_000))
            self.dispatcher.tick()
            if self._is_declared_dead and self._stands():
                self.end(fenced=True, patience=0.0)
                return not stops
            if self.outfit.store_watch.is_outgrown and not self._is_outgrown:
                self._is_outgrown = True
                self._reporter.warn(event.STORE_OUTGROWN, store=self.store.location, reason=OUTGROWN)
                self.dispatcher.drain(FOREVER_US)
            if self.profile.options.burst and not self.dispatcher.mandate.is_draining:
                hopeless = self.dispatcher.why_hopeless
                if hopeless or self.dispatcher.is_idle:
                    self.dispatcher.drain(0)
        self.end(fenced=False, patience=0.0 if stops > 1 else LAST_WORDS_SECONDS)
        if self._is_outgrown and not stops:
            raise SchemaMismatch(f"{self.store.location}: {OUTGROWN}")
        if hopeless:
            raise AppUnusable("raised", f"the burst ended early, because processes for tasks do not start: {hopeless}")
        return False

    def _poll_on(self, signals: Signals) -> select.poll:
        poll = select.poll()
        for fd in (
            self.outfit.crew.fileno(),
            self.outfit.bell.fileno(),
            self.outfit.scribes.fileno(),
            signals.fileno(),
        ):
            poll.register(fd, select.POLLIN)
        if self._messenger is not None:
            poll.register(self._messenger.fileno(), select.POLLIN)
        return poll

    def _hear(self, rung: set[int]) -> None:
        """The bell, or the loop that fetches events."""
        if self.outfit.bell.fileno() in rung:
            if self.outfit.bell.clear():
                self.dispatcher.heed()
            self.dispatcher.wake()
        if self._messenger is not None and self._messenger.fileno() in rung:
            self._messenger.turn()

    @property
    def _is_declared_dead(self) -> bool:
        return self.outfit.heartbeat.is_declared_dead or self.dispatcher.mandate.is_fenced

    def _look_for_changes(self) -> None:
        """The slow poll under the bell; and, now and then, a look at processes that do not answer."""
        self._tell_of_outage()
        if not self._stands():
            return
        try:
            self._renew_names()
            version = self.store.data_version()
        except StoreUnavailable as error:
            self._reporter.store_unavailable("dispatcher", error)
            return
        if self._reporter.store_away_for and not self.dispatcher.tally.fails_alone:
            # It can be read: whether it can be written is known by a beat.
            self._services.hurry(self.outfit.heartbeat)
        if version != self._version:
            self._version = version
            self.dispatcher.wake()
            self.dispatcher.heed()
        self.dispatcher.note_unresponsive()
        if self._messenger is not None:
            self._messenger.turn()

    def _renew_names(self) -> None:
        known = self.dispatcher.slots.staffing.names
        if known != frozenset(self._names):
            names = tuple(sorted(known))
            self.store.renew_names(self.profile.worker_id, names)
            self._names = names

    def _stands(self) -> bool:
        """Whether the store is the one that we entered, as far as can be told. If it is not, only the processes are
        served: no loop may write to it, and nobody declared us dead."""
        try:
            stands = self.outfit.store_watch.is_same_store()
        except StoreUnavailable as error:
            self._reporter.store_unavailable("dispatcher", error)
            return not self.dispatcher.mandate.is_displaced
        if not stands and not self._services.are_paused:
            self.outfit.heartbeat.is_declared_dead = self.dispatcher.mandate.is_fenced = False
            self._services.pause(but=self.outfit.keeper)
        elif stands and self._services.are_paused:
            self._services.resume()
        return stands

    def _tell_of_outage(self) -> None:
        """While the store is away this is the only place where it can be said."""
        if self.dispatcher.store_away_us:
            self._reporter.store_unavailable("dispatcher", StoreUnavailable(self.dispatcher.tally.last_error or ""))
        trouble = self.outfit.keeper.spool.trouble
        if trouble != self._told_trouble and trouble is not None:
            self._reporter.warn(event.SPOOL_FULL, reason=trouble, kept=len(self.outfit.keeper.spool))
        self._told_trouble = trouble

    # -- its end ----------------------------------------------------------------------------------------------------

    def end(self, *, fenced: bool, patience: float) -> None:
        """Commit the goodbye, then let go of what proves us alive (PROTOCOL 10). `patience` is for subscribers who are
        still to be told of something."""
        self._services.stop()
        self.dispatcher.dismiss()
        self._pass_time_until(lambda: self.dispatcher.is_dismissed)
        self.dispatcher.keep_rest()
        if self.dispatcher.mandate.is_displaced:
            return
        try:
            self._say_goodbye(fenced=fenced)
            owns_nothing = not self.store.owned_by(self.profile.worker_id, limit=1)
            self.outfit.files.stay = not (owns_nothing and self.dispatcher.is_dismissed)
            if (messenger := self._messenger) is not None:
                messenger.finish(patience, lambda: self._pass_time(0.02))
                self._pass_time_until(lambda: not messenger.has_process)
        except StoreUnavailable as error:
            self._reporter.store_unavailable("goodbye", error)

    def _pass_time_until(self, is_over: Callable[[], bool]) -> None:
        """For processes that do what the application wants done at their end."""
        give_up_at = self._clock.mono_us() + DISMISS_US
        while not is_over() and self._clock.mono_us() < give_up_at:
            self._pass_time(0.1)

    def _pass_time(self, seconds: float) -> None:
        select.select([self.outfit.crew.fileno(), self.outfit.scribes.fileno()], [], [], seconds)
        self.dispatcher.tick()

    def _say_goodbye(self, *, fenced: bool) -> None:
        worker_id, tally = self.profile.worker_id, self.dispatcher.tally
        if fenced:
            told = Event(name=event.WORKER_FENCED, worker_id=worker_id, facts={"refused": tally.refused})
            self.store.announce([told])
        else:
            facts = {"completed": tally.completed}
            if self.profile.options.burst:
                facts["later"] = self.store.later(self.profile.options.queues)
            self.store.retire(worker_id, facts)
