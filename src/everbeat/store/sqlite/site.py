"""What can be known of a SQLite store without opening it: where it keeps its files, who is in the way, and what can be
done if it is damaged."""

from pathlib import Path

from everbeat.model.integrity import Rescue
from everbeat.store.sqlite import rescue, side
from everbeat.store.sqlite.blocker import Blocker, find_blocker


class SQLiteSite:
    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    @property
    def location(self) -> str:
        return f"sqlite:///{self._path}"

    @property
    def state_directory(self) -> Path:
        return side.make_directory(side.directory_of(self._path), like=self._path)

    def blocker(self) -> Blocker | None:
        return find_blocker(self._path)

    def rescue(self) -> Rescue:
        return rescue.rescue(self._path)
