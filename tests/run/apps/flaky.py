"""An application that can be imported while a file says so."""

import os
from pathlib import Path

from basic import app

if Path(os.environ["FLAKY"]).read_text() != "fine":
    raise RuntimeError("not now")

__all__ = ["app"]
