"""What can be known of a PostgreSQL store without opening it: where it is, and where its workers on this host keep
their files."""

import hashlib
import os
from pathlib import Path

from everbeat import private
from everbeat.errors import StoreUnavailable
from everbeat.model.integrity import Rescue
from everbeat.secrecy import located
from everbeat.store.interface import Blocker


class PostgresSite:
    def __init__(self, url: str, schema: str | None) -> None:
        self._url = url
        self._schema = schema

    @property
    def location(self) -> str:
        return located(self._url, self._schema)

    @property
    def state_directory(self) -> Path:
        """Of this user and this store, never in a directory that others may write (PROTOCOL 40)."""
        path = _home() / self._key
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            private.close_directory(path)
        except OSError as error:
            raise StoreUnavailable(f"can not use the directory {path}: {error.strerror or error}") from error
        return path

    @property
    def _key(self) -> str:
        """What the store is called as long as nobody has opened it."""
        return hashlib.blake2b(f"{self._url} {self._schema or ''}".encode(), digest_size=8).hexdigest()

    def blocker(self) -> Blocker | None:
        return None

    def rescue(self) -> Rescue:
        return Rescue(
            recovery_point="the last backup of the database",
            backup_command="pg_dump --format=custom --file=everbeat.dump --table='*.everbeat_*' DATABASE",
            steps=(
                "stop the workers",
                "look at the server's log: damage of a PostgreSQL database comes from its disk or its memory",
                "restore the database from its last backup, then run: everbeat db check",
            ),
        )


def _home() -> Path:
    """EVERBEAT_STATE_DIR, else what the system gives this user for files of this boot, else its home."""
    given = os.environ.get("EVERBEAT_STATE_DIR")
    if given:
        return Path(given).absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "everbeat"
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "everbeat"
