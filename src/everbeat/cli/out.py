"""The only place that prints: data and tables on stdout, complaints on stderr."""

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from everbeat.cli.ends import USAGE, Refused
from everbeat.report.text import Column, clean, plain, table
from everbeat.secrecy import without_passwords

if TYPE_CHECKING:
    from rich.progress import Progress


def open_streams() -> None:
    """Before anything else is opened: in the place of a stream that whoever started us had closed it would get what is
    printed there, or the log. What a terminal has no character for is shown by its number."""
    streams = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    if any(getattr(sys, name) is None for name, _ in streams):
        while (taken := os.open(os.devnull, os.O_RDWR)) < len(streams):
            os.set_inheritable(taken, True)
        os.close(taken)
    for number, (name, mode) in enumerate(streams):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    try:
        _write(sys.stdout, f"{text}\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up()
        raise Refused(f"can not print on stdout: {error.strerror}") from error


def complain(text: str) -> None:
    with suppress(OSError):  # there is nobody left to tell
        _write(sys.stderr, "".join(f"{clean(line)}\n" for line in without_passwords(text).splitlines()))


def give_up() -> None:
    """Nothing more can be said on stdout, not even by the interpreter as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def data(value: Any) -> None:
    """A value as JSON, on its own: nothing else goes to stdout with `--json`."""
    say(json.dumps(plain(value), indent=2))


def data_line(value: Any) -> None:
    """One value of a stream that has no end."""
    say(json.dumps(plain(value)))


def agree(would: str, question: str) -> None:
    """Go on only if the person at the terminal says yes; without one `--yes` is needed."""
    if not sys.stdin.isatty():
        raise Refused(f"{would}; add --yes to do it, --dry-run to look", code=USAGE)
    _write(sys.stderr, f"{question} [y/N]: ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("nothing was changed")


def clear() -> None:
    """Begin at the top, if a person watches."""
    if sys.stdout.isatty():
        _write(sys.stdout, "\033[H\033[2J")


def rows(columns: Sequence[Column], cells: Sequence[Sequence[object]], *, empty: str) -> None:
    say(table(columns, cells, width=_width()) if cells else empty)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for work that takes a while, if a person watches; call what it gives with each step."""
    done = 0

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        show(done, total)

    with growing(what) as show:
        yield advance


@contextmanager
def growing(what: str) -> Iterator[Callable[[int, int], None]]:
    """The same for work whose size is known only on the way: call what it gives with how much is done, and of what."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with _progress() as shown:
        bar = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(bar, completed=done, total=total)


def _progress() -> "Progress":
    from rich.console import Console  # lazily: most commands show no bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True, markup=False, emoji=False), transient=True)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int | None], None]]:
    """The same for work of several stages: the name of the stage, how much of it is done, and of what, if known."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    with _progress() as shown:
        bar = shown.add_task("", total=None)
        yield lambda stage, done, total: shown.update(bar, description=stage, completed=done, total=total)


def _width() -> int | None:
    """Of the terminal; None for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _write(where: TextIO, text: str) -> None:
    where.write(text)
    where.flush()
