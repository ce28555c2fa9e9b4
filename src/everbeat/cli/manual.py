"""The help of commands, made of what they say of themselves: for `--help`, and for docs/cli.md."""

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Iterator

from everbeat.cli.grammar import HELP, Function, Group, Param, params_of

WIDEST = 100
COLUMN = 30
"""Words longer than this stand on a line of their own."""


def usage(path: str, member: Function | Group) -> str:
    if isinstance(member, Group):
        return f"Usage: {path} COMMAND ..."
    params = list(params_of(member))
    return " ".join([f"Usage: {path}", *(place(param) for param in params if param.is_argument), "[OPTIONS]"])


def help_of(path: str, member: Function | Group) -> str:
    about = member.about if isinstance(member, Group) else inspect.getdoc(member) or ""
    parts = [usage(path, member), *(_filled(part, 2) for part in about.split("\n\n"))]
    if isinstance(member, Group):
        parts.append(_table("Commands", ((name, _in_short(inner)) for name, inner in member.members.items())))
        return "\n\n".join(parts)
    params = [param for param in params_of(member) if not param.said.hidden]
    parts.append(_table("Arguments", ((param.word, described(param)) for param in params if param.is_argument)))
    options = [(words_of(param), described(param)) for param in params if not param.is_argument]
    parts.append(_table("Options", [*options, (HELP, "Show this and exit.")]))
    return "\n\n".join(part for part in parts if part)


def place(param: Param) -> str:
    """An argument as the usage shows it."""
    word = param.word if param.is_required else f"[{param.word}]"
    return f"{word}..." if param.is_list else word


def words_of(param: Param) -> str:
    """An argument or option as it is typed."""
    if param.is_argument:
        return param.word
    return f"{param.flag} {param.value}" if param.takes_value else param.flag


def described(param: Param) -> str:
    notes = [param.said.help]
    if param.bounds:
        notes.append(f"{param.bounds.strip().capitalize()}.")
    if param.default not in (None, False, inspect.Parameter.empty):
        notes.append(f"Default: `{getattr(param.default, 'value', param.default)}`.")
    if param.said.envvar:
        notes.append(f"Environment: `{param.said.envvar}`.")
    return " ".join(filter(None, notes))


def _in_short(member: Function | Group) -> str:
    """The first sentence."""
    about = member.about if isinstance(member, Group) else inspect.getdoc(member) or ""
    first = " ".join(about.split("\n\n")[0].split())
    sentence, dot, _ = first.partition(". ")
    return sentence + dot.strip()


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    column = max((len(words) + 4 for words, _ in rows if len(words) + 4 <= COLUMN), default=COLUMN)
    lines = [line for words, text in rows for line in _row(words, text, column)]
    return "\n".join([f"{title}:", *lines]) if lines else ""


def _row(words: str, text: str, column: int) -> Iterator[str]:
    first, *others = _filled(text, column).splitlines() or [""]
    if len(words) + 4 > column:
        yield f"  {words}"
        yield first
    else:
        yield f"  {words:{column - 2}}{first.lstrip()}".rstrip()
    yield from others


def _filled(text: str, indent: int) -> str:
    width = min(WIDEST, shutil.get_terminal_size().columns)
    space = " " * indent
    return textwrap.fill(text, width=max(width, COLUMN + 20), initial_indent=space, subsequent_indent=space)
