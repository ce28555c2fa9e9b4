"""Write docs/cli.md from the commands themselves: `python tools/cli_docs.py`. With --check: exit 1 if not current."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from everbeat.cli import manual
from everbeat.cli.grammar import Function, Group, params_of
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


def _sections(group: Group, path: str) -> Iterator[str]:
    for name, member in group.members.items():
        if isinstance(member, Group):
            yield from _sections(member, f"{path} {name}")
        else:
            yield _section(member, f"{path} {name}")


def _section(function: Function, path: str) -> str:
    params = [param for param in params_of(function) if not param.said.hidden]
    arguments = "".join(f" {manual.place(param)}" for param in params if param.is_argument)
    described = [(manual.words_of(param), manual.described(param)) for param in params]
    rows = [f"| `{_cell(words)}` | {_cell(text)} |" for words, text in described if text]
    table = ["| | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {path}{arguments}", "", inspect.getdoc(function) or "", "", *table])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
