"""Write docs/cli.md from the commands themselves: `python tools/cli_docs.py`. With --check: exit 1 if not current."""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo

from everbeat.cli.main import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """\
# Command line

Made by `tools/cli_docs.py` from the commands themselves; a test keeps it current.

Which store: `--db URL`, else the store of `--app MODULE:APP` (or `EVERBEAT_APP`), else `EVERBEAT_DATABASE_URL`, else
the file of [configuration.md](configuration.md), else `everbeat.db` in the working directory. A look never creates a
store and imports no user code into its own process.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the command failed |
| 2 | usage or configuration: repeat it differently |
| 3 | the store is missing or can not be reached |

With `--json`, stdout holds JSON and nothing else: an array from `list` and `events`, one object from the others. Times
are ISO 8601 in UTC, durations are seconds.
"""


def page() -> str:
    return HEAD + "".join(f"\n{section}" for section in sorted(_sections(app, "everbeat")))


def _sections(group: typer.Typer, path: str) -> Iterator[str]:
    """Read from what we declared, not from what typer makes of it: that differs from version to version."""
    for command in group.registered_commands:
        yield _section(command.callback, f"{path} {command.name or command.callback.__name__}")
    for inner in group.registered_groups:
        yield from _sections(inner.typer_instance, f"{path} {inner.name}")


def _section(function: Callable[..., Any], path: str) -> str:
    params = [_Param.of(param, hint) for param, hint in _declared(function)]
    shown = [param for param in params if not param.info.hidden]
    arguments = "".join(f" {param.place}" for param in shown if param.is_argument)
    rows = [f"| `{param.words}` | {param.description} |" for param in shown if param.description]
    table = ["| | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {path}{arguments}", "", inspect.getdoc(function) or "", "", *table])


def _declared(function: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
    hints = get_type_hints(function, include_extras=True)
    for param in inspect.signature(function).parameters.values():
        yield param, hints[param.name]


@dataclass(frozen=True)
class _Param:
    name: str
    kind: Any
    default: Any
    info: Any
    is_list: bool

    @classmethod
    def of(cls, param: inspect.Parameter, hint: Any) -> "_Param":
        kind, info = get_args(hint)
        is_list = any(get_origin(one) is list for one in (kind, *get_args(kind)))
        inner = [one for one in get_args(kind) if one is not type(None)] if get_origin(kind) is not None else []
        kind = inner[0] if inner else kind
        return cls(param.name, next(iter(get_args(kind)), kind), param.default, info, is_list)

    @property
    def is_argument(self) -> bool:
        return isinstance(self.info, ArgumentInfo)

    @property
    def place(self) -> str:
        """An argument as the usage line shows it."""
        name = str(self.info.metavar)
        name = name if self.default is inspect.Parameter.empty else f"[{name}]"
        return f"{name}..." if self.is_list else name

    @property
    def words(self) -> str:
        if self.is_argument:
            return str(self.info.metavar)
        # Inside Annotated the first word of typer.Option() lands in its `default`.
        given = [word for word in (self.info.default, *(self.info.param_decls or ())) if str(word).startswith("--")]
        option = ", ".join(given) or "--" + self.name.replace("_", "-")
        return option if self.kind is bool else f"{option} {self._value}"

    @property
    def _value(self) -> str:
        if self.info.metavar:
            return str(self.info.metavar)
        if issubclass(self.kind, Enum):
            return "|".join(choice.value for choice in self.kind).replace("|", "\\|")
        return {int: "N", float: "X", str: "TEXT"}[self.kind]

    @property
    def description(self) -> str:
        notes = [self.info.help or ""]
        if self.default not in (None, False, inspect.Parameter.empty):
            notes.append(f"Default: `{getattr(self.default, 'value', self.default)}`.")
        if self.info.envvar:
            notes.append(f"Environment: `{self.info.envvar}`.")
        return " ".join(filter(None, notes)).replace("|", "\\|")


def main() -> int:
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
