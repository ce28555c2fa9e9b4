"""Import the application, and say what is wrong with it when that fails.

Only the fork server and children do this; the supervisor runs no user code. Everbeat itself is imported before the
working directory becomes importable (PROTOCOL 42), so nothing there can take the place of our own modules.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from everbeat.config.surroundings import look_around
from everbeat.errors import ConfigError
from everbeat.hooks import Hooks
from everbeat.run.failure import cut
from everbeat.run.unusable import AppUnusable

_OURS = (str(Path(__file__).parents[1]), "<string>")
_NOT_THEIRS = (__file__, importlib.__file__, "<frozen importlib")
"""Where the frames between us and a module that is imported are."""


class RunnableTask(Protocol):
    """What a child needs of a task."""

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def sensitive(self) -> bool: ...

    def decode_args(self, raw: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]: ...

    def encode_result(self, value: Any) -> bytes: ...

    def secrets_in(self, raw: bytes) -> frozenset[str]: ...


class RunnableApp(Protocol):
    """What fork server and children need of an application."""

    @property
    def tasks(self) -> Mapping[str, RunnableTask]: ...

    @property
    def imports(self) -> Iterable[str]: ...

    @property
    def hooks(self) -> Hooks: ...

    def move_to(self, url: str, *, where: str) -> None: ...

    def worker_facts(self) -> dict[str, Any]: ...


def load_app(target: str, imports: Iterable[str], *, database_url: str | None = None) -> RunnableApp:
    """Import MODULE:APP, then the modules that register tasks with it. A store that a flag names is used for all that
    its tasks send, too."""
    _import_what_comes_late()
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        raise AppUnusable("missing", "the working directory was removed; go to one that is there") from error
    if here not in sys.path:
        sys.path.insert(0, here)
    module_name, _, attribute = target.partition(":")
    module = _import(module_name)
    try:
        app: RunnableApp = attrgetter(attribute or "app")(module)
    except AttributeError as error:
        raise AppUnusable("missing", f"module {module_name} has no {attribute or 'app'!r}: {error}") from error
    if not (hasattr(app, "tasks") and hasattr(app, "worker_facts")):
        raise AppUnusable("missing", f"{target} is not an Everbeat app but {type(app).__name__}")
    if database_url is not None:
        app.move_to(database_url, where="--db")
    for name in (*imports, *app.imports):
        _import(name)
    return app


def _import_what_comes_late() -> None:
    """Our own imports that otherwise wait for their first use: the store, and the parser of a configuration file. After
    this a module of the application may have the name of any of them."""
    importlib.import_module("everbeat.store.sqlite.store")
    look_around()


def _import(name: str) -> Any:
    if not name or name.startswith("."):
        raise AppUnusable("missing", f"{name!r} is not the name of a module")
    try:
        return importlib.import_module(name)
    except BaseException as error:  # user code, which may also call sys.exit()
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise AppUnusable("missing", f"there is no module {error.name} in {os.getcwd()} or sys.path") from error
        if isinstance(error, ConfigError):  # says all there is to say, but not which line of the code made it
            raise AppUnusable("config", _place(error) + str(error)) from error
        raise AppUnusable("raised", _traceback(error)) from error


def _traceback(error: BaseException) -> str:
    """From the first line of the user's own code on."""
    return cut("".join(traceback.format_exception(type(error), error, _their_frames(error))))


def _place(error: BaseException) -> str:
    theirs = [frame for frame in traceback.extract_tb(_their_frames(error)) if not frame.filename.startswith(_OURS)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""


def _their_frames(error: BaseException) -> TracebackType | None:
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename.startswith(_NOT_THEIRS):
        where = where.tb_next
    return where
