"""Values that are stored as JSON, read without trust: a hand may have written something else there.

One row that can not be read must not keep anybody from the others, so nothing here raises.
"""

import json
from typing import Any

SHOWN = 200


def object_in(stored: object) -> dict[str, Any] | None:
    """The JSON object in it; None if there is none."""
    try:
        said = json.loads(stored) if isinstance(stored, str) else None
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def facts_in(stored: object) -> dict[str, Any]:
    """The facts of an event; what stands there instead, for people to see."""
    said = object_in(stored)
    return {"unreadable": str(stored)[:SHOWN]} if said is None else said
