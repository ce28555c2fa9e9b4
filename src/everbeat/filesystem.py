"""What kind of file system a file is on, as the kernel names it."""

import ctypes
import os
from pathlib import Path

NETWORK = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x73757245: "coda",
    0x0BD00BD0: "lustre",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
}
"""Those that other machines see, too."""
PERHAPS = {0x65735546: "fuse", 0x01021997: "9p"}
"""Those that others may see: a directory of another machine, or of the host of a virtual one, or neither."""

_libc = ctypes.CDLL(None, use_errno=True)


def type_of(place: int | Path) -> int | None:
    """Of an open file, or of a path without opening it; None if the kernel does not say."""
    answer = ctypes.create_string_buffer(512)  # struct statfs is smaller everywhere, and f_type its first word
    asked = _libc.fstatfs(place, answer) if isinstance(place, int) else _libc.statfs(os.fsencode(place), answer)
    return None if asked != 0 else ctypes.c_ulong.from_buffer(answer).value & 0xFFFFFFFF
