"""The way of a worker into its store, which may be closed just now.

A worker waits for a store that is away, or that a frozen process keeps from it, for as long as it takes, and says so.
Only before its first life does it give up where a person has to act: a wrong password, no such database, a file that is
damaged. A burst does not wait for a server: it works off what is there now.
"""

from contextlib import ExitStack
from dataclasses import dataclass

from everbeat.config import SQLiteConfig
from everbeat.errors import StoreDamaged, StoreUnavailable
from everbeat.model.report import Progress, RecoveryReport
from everbeat.run.elsewhere import refuse_other_machines
from everbeat.run.life import Life
from everbeat.run.news import AppFacts
from everbeat.run.options import WorkerOptions
from everbeat.run.outfit import Outfit, Surroundings
from everbeat.run.profile import Profile
from everbeat.run.recovery import Tell
from everbeat.run.signals import Signals
from everbeat.run.startup import halted
from everbeat.run.unblock import Unblocker
from everbeat.store.open import site_of

RETRY_SECONDS = 0.25


class StoppedMeanwhile(Exception):
    """A signal came before we were ready."""


@dataclass(frozen=True, slots=True)
class Entry:
    options: WorkerOptions
    facts: AppFacts
    around: Surroundings
    signals: Signals
    on_progress: Tell
    store_id: str | None
    """Of the store that this worker was in before; None: this is its first life."""

    @property
    def is_first(self) -> bool:
        return self.store_id is None

    def begin_life(self, stack: ExitStack) -> tuple[Life, RecoveryReport | None] | None:
        """A life that is ready to work, with its report; None if we were told to stop meanwhile."""
        config = Profile(self.options, self.facts).config
        site, is_server = site_of(config), not isinstance(config.broker, SQLiteConfig)
        unblocker = Unblocker(site, config.recovery, self.around.clock, self.around.reporter)
        while not self.signals.take():
            with ExitStack() as attempt:
                try:
                    begun = self._try(attempt)
                except StoppedMeanwhile:
                    continue
                except StoreDamaged as error:
                    raise halted(site, error) from error
                except StoreUnavailable as error:
                    if not (unblocker.look() or self._waits_for(error, is_server=is_server)):
                        raise
                    self.around.reporter.store_unavailable("start", error)
                else:
                    stack.push(attempt.pop_all())
                    return begun
            self.signals.are_silent_for(RETRY_SECONDS)
        return None

    def _waits_for(self, error: StoreUnavailable, *, is_server: bool) -> bool:
        return not self.is_first or (error.may_pass and not (self.options.burst and is_server))

    def _try(self, stack: ExitStack) -> tuple[Life, RecoveryReport | None]:
        profile = Profile(self.options, self.facts)
        life = Life(Outfit(profile, self.around, stack, creates_store=self.is_first, store_id=self.store_id))
        if isinstance(profile.config.broker, SQLiteConfig):
            clock, reporter = self.around.clock, self.around.reporter
            refuse_other_machines(life.store, clock, reporter, self.signals.are_silent_for)
        self._go_on_unless_stopped()
        report = life.recover(first=self.is_first, on_progress=self._tell)
        life.register()
        life.begin()
        return life, report

    def _tell(self, progress: Progress) -> None:
        """A long recovery is left where it is when we are told to stop: whoever comes next finishes it."""
        self._go_on_unless_stopped()
        self.on_progress(progress)

    def _go_on_unless_stopped(self) -> None:
        if not self.signals.are_silent_for(0.0):
            raise StoppedMeanwhile
