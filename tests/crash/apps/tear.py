"""Leave the head of the WAL index as a process leaves it that is stopped between writing its two copies.

In a process of its own, because whoever closes a descriptor of this file loses its locks on it. Nobody can read after
that until the writer, who holds the write lock, goes on or goes away.
"""

import mmap
import os
from pathlib import Path

HEADER_BYTES = 48

fd = os.open(Path(os.environ["YARD"]) / "yard.db-shm", os.O_RDWR)
with mmap.mmap(fd, 4096) as memory:
    for place in range(HEADER_BYTES - 8, HEADER_BYTES):  # the checksum of the first copy
        memory[place] ^= 0xFF
os.write(1, b"torn\n")
