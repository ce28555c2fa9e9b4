"""`everbeat worker start`: from the options to a worker that runs, and its first lines."""

from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from everbeat import __version__
from everbeat.cli import given, out
from everbeat.cli.ends import FAILED, USAGE, Refused
from everbeat.cli.grammar import Argument, Option
from everbeat.config import AppConfig, broker_from_url, effective
from everbeat.config.catalogue import RECOVERY_ENABLED
from everbeat.decide.pace import DEEPEST
from everbeat.model.report import Progress, RecoveryReport
from everbeat.report.text import banner, recovery_line
from everbeat.run.cpus import usable_cpus

if TYPE_CHECKING:
    from everbeat.run.life import Life
    from everbeat.run.options import WorkerOptions


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Target = Annotated[
    str,
    Argument(metavar="MODULE:APP", envvar="EVERBEAT_APP", help="The application; the working directory is importable."),
]
Processes = Annotated[
    int | None, Option(min=1, max=1024, help="Processes for sync tasks. Default: the processors it may use.")
]
AsyncSlots = Annotated[
    int | None,
    Option(min=0, max=100_000, help="Async tasks at once. Default: 100 if the application has any."),
]
Queues = Annotated[str | None, Option(metavar="A,B", help="Only these queues. Default: every queue.")]
Name = Annotated[str | None, Option(help="Name of the worker. Default: the host's name.")]
Imports = Annotated[list[str] | None, Option("--import", metavar="MODULE", help="Import this too; may be repeated.")]
Burst = Annotated[
    bool, Option("--burst", help="Exit when nothing can start now and nothing runs; count what is due later.")
]
DrainTimeout = Annotated[
    float, Option(min=0, metavar="SECONDS", help="How long running tasks may go on after SIGTERM.")
]
Db = Annotated[str | None, Option("--db", metavar="URL", help="Use this store, not the app's own.")]
Http = Annotated[
    str | None,
    Option(metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics there. PORT alone means 127.0.0.1."),
]
Format = Annotated[LogFormat, Option(help="Of the log on stderr.")]
Level = Annotated[LogLevel, Option(help="Of the log on stderr.")]
FrameDepth = Annotated[int, Option(min=1, max=1024, hidden=True)]


def start(
    target: Target,
    processes: Processes = None,
    async_slots: AsyncSlots = None,
    queues: Queues = None,
    name: Name = None,
    imports: Imports = None,
    burst: Burst = False,
    drain_timeout: DrainTimeout = 25.0,
    db: Db = None,
    http: Http = None,
    log_format: Format = LogFormat.TEXT,
    log_level: Level = LogLevel.INFO,
    frame_depth: FrameDepth = DEEPEST,
) -> None:
    """Run a worker until SIGTERM, Ctrl-C or the end of its terminal (SIGHUP).

    What dead workers left is recovered first, then it prints `ready`.
    """
    from everbeat.report import log  # lazily: the help of this command needs nothing of what runs a store
    from everbeat.run.options import WorkerOptions

    options = WorkerOptions(
        target=target,
        processes=processes or usable_cpus(),
        async_slots=async_slots,
        queues=given.names(queues, "queue"),
        name=None if name is None else given.name(name, "worker name"),
        imports=tuple(imports or ()),
        database_url=None if db is None else broker_from_url(db, where="--db").url,
        burst=burst,
        drain_timeout=drain_timeout,
        frame_depth=frame_depth,
        log_level=log_level,
        log_format=log_format,
        http=None if http is None else given.address(http),
    )
    log.set_up(level=log_level, style=log_format)
    raise SystemExit(_run(options))


def _run(options: "WorkerOptions") -> int:
    from everbeat.run.unusable import AddressUnusable, AppUnusable, LimitUnusable
    from everbeat.run.worker import run_worker

    try:
        with _Bar() as bar:
            return run_worker(options, announce=bar.then(_announce), on_progress=bar.show)
    except AddressUnusable as error:
        raise Refused(f"--http: {error}") from error
    except LimitUnusable as error:
        raise Refused(str(error)) from error
    except AppUnusable as error:
        code = USAGE if error.kind in ("missing", "config") else FAILED
        raise Refused(f"{options.target}: {error}", code=code) from error


class _Bar(ExitStack):
    """How far the recovery is, on a terminal, from its first word to the banner."""

    _stages: Callable[[str, int, int | None], None] | None = None

    def show(self, progress: Progress) -> None:
        if self._stages is None:
            self._stages = self.enter_context(out.stages())
        self._stages(progress.stage, progress.done, progress.total)

    def then(self, announce: Callable[["Life", RecoveryReport | None], None]) -> Callable[..., None]:
        def announced(life: "Life", report: RecoveryReport | None) -> None:
            self.close()
            announce(life, report)

        return announced


def _announce(life: "Life", report: RecoveryReport | None) -> None:
    worker = life.profile
    out.say(
        banner(
            version=__version__,
            worker_id=worker.worker_id,
            pid=worker.host.pid,
            target=worker.options.target,
            task_count=len(worker.names),
            store=life.store.location,
            engine=_engine(life),
            processes=worker.options.processes,
            async_slots=worker.async_slots,
            queues=worker.options.queues,
            recovery=recovery_line(report),
        )
    )
    _tell_settings(worker.config)
    out.say("ready")


def _engine(life: "Life") -> str:
    why = life.outfit.session.why_unusable
    return life.store.engine if why is None else f"{life.store.engine}; heartbeats only, no session lease: {why}"


def _tell_settings(config: AppConfig) -> None:
    from everbeat.report.log import Reporter

    reporter = Reporter()
    for one in effective(config):
        if one.is_from_outside:
            say = reporter.warn if one.origin == RECOVERY_ENABLED else reporter.say
            say("setting.given", name=one.key, value=one.value, by=one.origin)
