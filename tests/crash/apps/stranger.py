"""A process that is not ours and keeps the write lock until it is killed: a forgotten sqlite3 shell."""

import os
import signal
import sqlite3
from pathlib import Path

connection = sqlite3.connect(Path(os.environ["YARD"]) / "yard.db", isolation_level=None, timeout=60)
connection.execute("PRAGMA wal_autocheckpoint=0")
connection.execute("BEGIN IMMEDIATE")
os.write(1, b"blocks\n")
while True:
    signal.pause()
