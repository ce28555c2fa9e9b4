"""Hear every write, sync, truncation and removal that SQLite makes, in this process: the very library that Python's
sqlite3 uses, with two functions of its file system layer replaced through ctypes.

No other SQLite, no compiler, no extension: the code under test runs as it always does. Only the files of one database
are heard. Reads, locks and shared memory (-shm, which no power loss leaves behind) go past us.
"""

import _sqlite3
import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, cast
from typing import Any, NamedTuple


class Op(NamedTuple):
    """What reached the file system: "write", "truncate", "sync", "create" or "delete"."""

    what: str
    file: str
    """The ending of its name: "" for the database, "-wal", "-journal"."""
    offset: int = 0
    """Of a write; the new size for a truncation."""
    data: bytes = b""


Hear = Callable[[Op], None]

# Names are passed on as addresses: SQLite keeps them for as long as a file is open, and has more behind their end.
_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
_CLOSE = CFUNCTYPE(c_int, c_void_p)
_OPEN_CREATE = 0x4


class _Methods(Structure):
    """sqlite3_io_methods, version 3."""

    _fields_ = [
        ("version", c_int), ("close", c_void_p), ("read", c_void_p), ("write", c_void_p), ("truncate", c_void_p),
        ("sync", c_void_p), *((f"other_{number}", c_void_p) for number in range(13)),
    ]  # fmt: skip


class _File(Structure):
    _fields_ = [("methods", POINTER(_Methods))]


class _Vfs(Structure):
    """The beginning of sqlite3_vfs."""

    _fields_ = [
        ("version", c_int), ("file_size", c_int), ("longest_path", c_int), ("next", c_void_p), ("name", c_char_p),
        ("data", c_void_p), ("open", c_void_p), ("delete", c_void_p),
    ]  # fmt: skip


_FOR_EVER: list["Recorder"] = []
"""SQLite calls into them until this process ends."""


class Recorder:
    def __init__(self, path: str, hear: Hear) -> None:
        self._path = path.encode()
        self._hear = hear
        self._files: dict[int, str] = {}
        self._known: set[str] = set()
        self._replaced: dict[int, Any] = {}
        library = ctypes.CDLL(_sqlite3.__file__)  # and with it the SQLite that this module is linked to
        library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        self._vfs = library.sqlite3_vfs_find(None).contents
        self._real_open, self._real_delete = _OPEN(self._vfs.open), _DELETE(self._vfs.delete)
        self._open_here, self._delete_here = _OPEN(self._open), _DELETE(self._delete)
        self._vfs.open = cast(self._open_here, c_void_p).value
        self._vfs.delete = cast(self._delete_here, c_void_p).value
        _FOR_EVER.append(self)

    def _ending(self, address: int | None) -> str | None:
        name = ctypes.string_at(address) if address else b""
        if not name.startswith(self._path):
            return None
        ending = name[len(self._path) :].decode()
        return ending if ending in ("", "-wal", "-journal") else None

    def _open(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        code = int(self._real_open(vfs, name, file, flags, out))
        ending = self._ending(name)
        opened = cast(file, POINTER(_File)).contents
        if code == 0 and ending is not None and opened.methods:
            if ending not in self._known and flags & _OPEN_CREATE:
                self._known.add(ending)
                self._hear(Op("create", ending))
            self._files[file] = ending
            opened.methods = ctypes.pointer(self._listening(opened.methods))
        return code

    def _delete(self, vfs: int, name: int | None, sync_directory: int) -> int:
        code = int(self._real_delete(vfs, name, sync_directory))
        ending = self._ending(name)
        if code == 0 and ending is not None:
            self._known.discard(ending)
            self._hear(Op("delete", ending))
            if sync_directory:
                self._hear(Op("sync", ending))
        return code

    def _listening(self, real: Any) -> _Methods:
        """A copy of a file's methods that tells us first and then does the real thing."""
        address = ctypes.addressof(real.contents)
        if address not in self._replaced:
            copy = _Methods.from_buffer_copy(real.contents)
            write, truncate = _WRITE(copy.write), _TRUNCATE(copy.truncate)
            sync, close = _SYNC(copy.sync), _CLOSE(copy.close)

            def on_write(file: int, data: int, size: int, offset: int) -> int:
                self._hear(Op("write", self._files[file], offset, ctypes.string_at(data, size)))
                return int(write(file, data, size, offset))

            def on_truncate(file: int, size: int) -> int:
                self._hear(Op("truncate", self._files[file], size))
                return int(truncate(file, size))

            def on_sync(file: int, flags: int) -> int:
                code = int(sync(file, flags))
                if code == 0:
                    self._hear(Op("sync", self._files[file]))
                return code

            def on_close(file: int) -> int:
                self._files.pop(file, None)
                return int(close(file))

            here = _WRITE(on_write), _TRUNCATE(on_truncate), _SYNC(on_sync), _CLOSE(on_close)
            copy.write, copy.truncate, copy.sync, copy.close = (cast(one, c_void_p).value for one in here)
            self._replaced[address] = copy, here
        methods: _Methods = self._replaced[address][0]
        return methods
