"""For commands that go on until somebody ends them: they go on through an outage of the store, as workers do."""

import time
from collections.abc import Callable
from typing import TypeVar

from everbeat.cli import out
from everbeat.errors import StoreUnavailable

T = TypeVar("T")

AGAIN_SECONDS = 0.5


def outlast(look: Callable[[], T]) -> T:
    """What a look at the store comes to. An outage that may end by itself is waited for, and said once."""
    is_told = False
    while True:
        try:
            return look()
        except StoreUnavailable as error:
            if not error.may_pass:
                raise
            if not is_told:
                out.complain(f"everbeat: {error} Waiting for it")
            is_told = True
            time.sleep(AGAIN_SECONDS)
