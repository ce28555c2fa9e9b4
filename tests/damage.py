"""Ways to damage a SQLite file, each really done to its bytes. Nobody may have it open."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path


def settle(path: Path) -> None:
    """All of it in the file itself, no log beside it."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def root_of(path: Path, name: str) -> tuple[int, int]:
    """Where the pages of a table or index begin: offset and size of a page."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return (page - 1) * size, size


def damage_index(path: Path, key: bytes = b"task-7", name: str = "sqlite_autoindex_everbeat_tasks_1") -> None:
    """Change one key of an index, so that a row is not found by it. Its pages stay well-formed."""
    settle(path)
    offset, size = root_of(path, name)
    content = bytearray(path.read_bytes())
    at = content.index(key, offset, offset + size)
    content[at : at + len(key)] = key[:-1] + b"\x7f"
    path.write_bytes(content)


def wreck_index(path: Path, name: str = "sqlite_autoindex_everbeat_tasks_1") -> None:
    """Make a page of an index unreadable: REINDEX can not even throw it away."""
    settle(path)
    _overwrite(path, *root_of(path, name))


def scramble(path: Path, name: str) -> None:
    """Overwrite the first page of a table or index with what looks like nothing."""
    settle(path)
    offset, size = root_of(path, name)
    content = bytearray(path.read_bytes())
    content[offset : offset + size] = random.Random(name).randbytes(size)
    path.write_bytes(content)


def wreck_table(path: Path, name: str = "everbeat_tasks") -> None:
    """Make a page of a table unreadable."""
    settle(path)
    _overwrite(path, *root_of(path, name))


def wreck_schema(path: Path) -> None:
    """Make the list of tables unreadable. The header before it says that all is well."""
    settle(path)
    _overwrite(path, 100, 400)


def shuffle_table(path: Path, name: str = "everbeat_tasks") -> None:
    """Swap two rows in the page of a small table. Each can be read, and no index is to blame."""
    settle(path)
    offset, _ = root_of(path, name)
    content = bytearray(path.read_bytes())
    assert content[offset] == 0x0D  # a leaf; behind its eight bytes are the places of its rows
    first, second = slice(offset + 8, offset + 10), slice(offset + 10, offset + 12)
    content[first], content[second] = content[second], content[first]
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Cut the second half off."""
    settle(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 8192 * 4096])


def _overwrite(path: Path, offset: int, size: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + size] = b"\xa5" * size
    path.write_bytes(content)
