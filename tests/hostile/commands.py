"""Every command there is, from the command line's own catalogue, so that none can be forgotten here."""

from collections.abc import Iterator

from everbeat.cli.grammar import Function, Group, params_of
from everbeat.cli.main import app

Path = tuple[str, ...]

ALONE = {("demo",), ("worker", "start"), ("check",), ("drill",), ("bench",), ("db", "backup"), ("db", "restore")}
"""They start an application, or are about a store or a file of their own."""
OF = {
    ("task", "show"): "failed", ("task", "retry"): "failed", ("task", "cancel"): "pending",
    ("task", "purge"): "completed", ("task", "requeue"): "running", ("task", "fail"): "keyed",
    ("task", "erase"): "retried", ("quarantine", "release"): "failed", ("quarantine", "discard"): "failed",
    ("task", "enqueue"): "add", ("worker", "health"): "w1", ("queue", "pause"): "mail", ("queue", "resume"): "paused",
}  # fmt: skip
"""What a command is said about, in a furnished store (tests/hostile/rows.py)."""
IN_GROUP = {"task": "late", "workflow": "flow"}
MORE = ([], ["--json"], ["--yes"], ["--show-heartbeat"], ["--limit", "1000"], ["--graph"], ["--dry-run"])
"""Each command with each of these that it knows."""


def leaves(group: Group = app, path: Path = ()) -> Iterator[tuple[Path, Function]]:
    for name, member in group.members.items():
        if isinstance(member, Group):
            yield from leaves(member, (*path, name))
        else:
            yield (*path, name), member


LEAVES = dict(leaves())
OPTIONS = sorted({param.flag for command in LEAVES.values() for param in params_of(command) if not param.is_argument})


def calls() -> Iterator[list[str]]:
    """Calls that are understood, of every command that works on a store."""
    for path, command in LEAVES.items():
        if path not in ALONE:
            params = list(params_of(command))
            flags = {param.flag for param in params}
            about = [OF.get(path) or IN_GROUP[path[0]] for param in params if param.is_argument]
            for more in MORE:
                if flags.issuperset(more[:1]):
                    yield [*path, *about, *more]
