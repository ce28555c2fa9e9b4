"""The tables, in numbered steps, written for SQLite; PostgreSQL reads the same files in its own types.

Created on an empty store; changed only when asked to (PROTOCOL 37).
"""

from importlib import resources

from everbeat.errors import SchemaMismatch, StoreUnavailable
from everbeat.model.flow import NodeStatus, WorkflowStatus
from everbeat.model.state import TaskStatus

VERSION = "SELECT value FROM everbeat_meta WHERE key = 'schema_version'"
SET_META = "INSERT INTO everbeat_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
Step = tuple[int, str]


def steps() -> list[Step]:
    folder = resources.files("everbeat.store.schema")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [(int(file.name[:4]), _filled(file.read_text())) for file in files]


def _filled(script: str) -> str:
    states = {"{states}": TaskStatus, "{workflow_states}": WorkflowStatus, "{node_states}": NodeStatus}
    for place, named in states.items():
        script = script.replace(place, ", ".join(f"'{status}'" for status in named))
    return script


def newest() -> int:
    return steps()[-1][0]


def missing(found: int | None) -> list[Step]:
    """The steps from there to the newest schema."""
    return [(version, script) for version, script in steps() if version > (found or 0)]


def check(store: str, found: int) -> None:
    """Raise if the store that has this schema can not be used by this program."""
    if found > newest():
        raise SchemaMismatch(
            f"{store} has schema {found}, this Everbeat knows up to {newest()}. Nothing was changed. Upgrade Everbeat."
        )
    if found < newest():
        raise SchemaMismatch(
            f"{store} has schema {found}, this Everbeat needs {newest()}. Nothing was changed. Run: everbeat db migrate"
        )


def number(store: str, stored: tuple[str, ...] | None) -> int:
    if stored is None or not stored[0].isdecimal():
        raise StoreUnavailable(f"{store}: its schema version is missing or damaged. Nothing was changed.")
    return int(stored[0])


def set_meta(key: str, value: str) -> str:
    """For people."""
    return SET_META.replace("(?, ?)", f"('{key}', '{value}')") + ";"
