"""How a command ends: four exit codes, and one line on stderr for everything that was to be expected."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from everbeat.errors import ConfigError, EverbeatError, PayloadError, SchemaMismatch, StoreUnavailable

OK = 0
FAILED = 1
USAGE = 2
"""Usage or configuration: repeat it differently."""
NO_STORE = 3
"""The store is missing, can not be reached, or is of another version."""


class Refused(Exception):
    """The command can not do what was asked. The message is all a person needs; a traceback would not help."""

    def __init__(self, message: str, *, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """SIGTERM ends what is in it as Ctrl-C does: whatever it has started and made is removed."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def code_for(error: Refused | EverbeatError) -> int:
    if isinstance(error, Refused):
        return error.code
    if isinstance(error, ConfigError | PayloadError):
        return USAGE
    return NO_STORE if isinstance(error, StoreUnavailable | SchemaMismatch) else FAILED
