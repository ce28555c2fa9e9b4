"""What a worker shows of itself over HTTP, from before its application is imported until it has ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from everbeat.clock import Clock
from everbeat.errors import StoreUnavailable
from everbeat.report.log import Reporter
from everbeat.run.dispatcher import Dispatcher
from everbeat.run.health import Health
from everbeat.run.meter import Meter
from everbeat.store.interface import Store
from everbeat.store.messages import Measures

if TYPE_CHECKING:
    from everbeat.run.httpd import HttpServer


class Shown(Protocol):
    """A worker under one id."""

    @property
    def dispatcher(self) -> Dispatcher: ...

    def open_store(self) -> Store: ...


class Window:
    def __init__(self, clock: Clock, reporter: Reporter) -> None:
        self._reporter = reporter
        self._health = Health(clock, reporter)
        self._meter: Meter | None = None
        self._life: Shown | None = None
        self._store: Store | None = None

    def open(self, host: str, port: int) -> "HttpServer":
        """Serve from now on. Raises AddressUnusable."""
        from everbeat.run.httpd import HttpServer, kept, said  # a megabyte that most workers do without

        pages = {
            "/livez": said(self._health.live),
            "/readyz": said(self._health.ready),
            "/metrics": kept(self._metrics),
        }
        server = HttpServer(host, port, pages)
        self._meter = Meter()
        server.start()
        self._reporter.say("http.listening", address=server.address)
        return server

    @contextmanager
    def on(self, life: Shown) -> Iterator[None]:
        """This life is ready to work."""
        if self._meter is not None:
            life.dispatcher.measure_with(self._meter)
            self._store = life.open_store()
        self._life = life
        self._health.begin(life.dispatcher)
        try:
            yield
        finally:
            self._health.end()
            self._life = self._store = None

    def _metrics(self) -> tuple[bool, str, bytes]:
        from everbeat.report import metrics  # lazily: a worker that shows nothing needs none of it in its memory

        found, life, meter = self._measure(), self._life, self._meter
        own = None
        if life is not None and meter is not None:
            spooled = len(life.dispatcher.keeper.spool)
            own = metrics.OwnMeasures(
                spooled_outcomes=spooled, flush_sizes=meter.flush_sizes, durations=dict(meter.durations)
            )
        is_up = found is not None and self._health.store_away_for == 0
        return True, metrics.CONTENT_TYPE, metrics.text(found, own, is_up=is_up)

    def _measure(self) -> Measures | None:
        store = self._store
        try:
            return None if store is None else store.measure()
        except StoreUnavailable as error:
            self._reporter.store_unavailable("metrics", error)
            return None
