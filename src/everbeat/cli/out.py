"""The only place that prints: data and tables on stdout, complaints on stderr."""

import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import typer

from everbeat.report.text import Column, clean, plain, table


def say(text: str) -> None:
    typer.echo(text)


def complain(text: str) -> None:
    typer.echo("\n".join(map(clean, text.splitlines())), err=True)


def data(value: Any) -> None:
    """A value as JSON, on its own: nothing else goes to stdout with `--json`."""
    typer.echo(json.dumps(plain(value), indent=2))


def data_line(value: Any) -> None:
    """One value of a stream that has no end."""
    typer.echo(json.dumps(plain(value)))


def rows(columns: Sequence[Column], cells: Sequence[Sequence[object]], *, empty: str) -> None:
    typer.echo(table(columns, cells, width=_width()) if cells else empty)


def _width() -> int | None:
    """Of the terminal; None for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
