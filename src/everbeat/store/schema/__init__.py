"""The tables, in numbered steps, written for SQLite; PostgreSQL reads the same files in its own types.

Created on an empty store; changed only when asked to (PROTOCOL 37). A step only adds, so that programs of the version
before go on beside the new ones. One that takes something away begins with the line `-- min_reader: N`: it is made only
once no worker is left that knows less than schema N.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from everbeat.decide.liveness import threshold_us
from everbeat.errors import SchemaMismatch, StoreUnavailable
from everbeat.model.flow import NodeStatus, WorkflowStatus
from everbeat.model.state import TaskStatus
from everbeat.store.upkeep import Schema

VERSION, MIN_READER = "schema_version", "schema_min_reader"
FOUND = f"SELECT key, value FROM everbeat_meta WHERE key IN ('{VERSION}', '{MIN_READER}')"
SET_META = "INSERT INTO everbeat_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
OLDER_WORKERS = """
SELECT id, beat_at, beat_interval_ms FROM everbeat_workers WHERE status = 'alive' AND knows_schema < ? ORDER BY id"""
SILENT_MS = 60_000
"""A worker that has not beaten for so long, and for some beats, is not at work whatever its row says: nobody of its
version could start any more to declare it dead, and nobody of the next before the tables are changed."""
ONE_OF = re.compile(r"CHECK \((\w+) IN \(([^)]+)\)\)")
SAYS_MIN_READER = re.compile(r"-- min_reader: (\d+)$", re.MULTILINE)


class Step(NamedTuple):
    version: int
    script: str

    @property
    def min_reader(self) -> int:
        """Programs that know less can not go on once it is made."""
        said = SAYS_MIN_READER.match(self.script)
        return int(said[1]) if said else 1


class Found(NamedTuple):
    """What a store says of its schema."""

    version: int
    min_reader: int


@cache
def steps() -> list[Step]:
    folder = resources.files("everbeat.store.schema")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [Step(int(file.name[:4]), _filled(file.read_text())) for file in files]


def _filled(script: str) -> str:
    states = {"{states}": TaskStatus, "{workflow_states}": WorkflowStatus, "{node_states}": NodeStatus}
    for place, named in states.items():
        script = script.replace(place, ", ".join(f"'{status}'" for status in named))
    return ONE_OF.sub(_each_compared, script)


def _each_compared(check: re.Match[str]) -> str:
    """Of a list in a CHECK SQLite makes a table anew for every row that is written: a third of the time of a claim."""
    return f"CHECK ({' OR '.join(f'{check[1]} = {word}' for word in check[2].split(', '))})"


def newest() -> int:
    return steps()[-1].version


def missing(found: int | None) -> list[Step]:
    """The steps from there to the newest schema."""
    return [step for step in steps() if step.version > (found or 0)]


def min_reader() -> int:
    """Of the newest schema."""
    return max(step.min_reader for step in steps())


def check(store: str, found: Found) -> None:
    """Raise if the store that has this schema can not be used by this program."""
    if found.min_reader > newest():
        raise SchemaMismatch(
            f"{store} has schema {found.version}, this Everbeat knows up to {newest()} and can not use it. Nothing was "
            f"changed. Upgrade Everbeat."
        )
    if found.version < newest():
        raise SchemaMismatch(
            f"{store} has schema {found.version}, this Everbeat needs {newest()}. Nothing was changed. "
            f"Run: everbeat db migrate"
        )


def outgrows(min_reader: str) -> bool:
    """Whether a store that says so can not be used by this program."""
    return min_reader.isdecimal() and int(min_reader) > newest()


def compared(store: str, found: Found | None) -> Schema:
    """With what this program knows. Raises if it is too old for it."""
    if found is not None and found.version > newest():
        check(store, found)
    return Schema(found=found.version if found else None, newest=newest())


def refuse_older(store: str, workers: Iterable[Sequence[Any]], now: int) -> None:
    """Raise if these, from OLDER_WORKERS, are at work: a step that they could not live with waits for their end."""
    left = {worker: beat_at + threshold_us(SILENT_MS, interval) - now for worker, beat_at, interval in workers}
    at_work = [worker for worker, until_gone in left.items() if until_gone >= 0]
    if at_work:
        raise SchemaMismatch(
            f"{store}: its tables are as they were, because workers of an older version are at work: "
            f"{', '.join(at_work[:10])}. They claim nothing more, and end when what they run has ended. "
            f"Run it again then; or in {max(left.values()) // 1_000_000 + 1}s, if they were killed."
        )


def read(store: str, rows: Iterable[Sequence[Any]]) -> Found:
    """From the answer to FOUND."""
    said = {key: value for key, value in rows if str(value).isdecimal()}
    if VERSION not in said:
        raise StoreUnavailable(f"{store}: its schema version is missing or damaged. Nothing was changed.")
    return Found(int(said[VERSION]), int(said.get(MIN_READER, said[VERSION])))


def migration(found: int | None, say: Callable[[str], str] = str) -> str:
    """What brings a store from there to the newest schema, as SQL for people. `say` puts a step into the words of the
    database."""
    todo = missing(found)
    lines = [f"-- step {step.version:04}\n{say(step.script)}" for step in todo]
    if found is None:
        lines.append(_set_meta("store_id", str(uuid.uuid4())))
    if todo:
        lines.append(_set_meta(MIN_READER, str(min_reader())))
        lines.append(_set_meta(VERSION, str(newest())))
    return "\n".join(lines)


def _set_meta(key: str, value: str) -> str:
    return SET_META.replace("(?, ?)", f"('{key}', '{value}')") + ";"
