"""The application can not be used by a worker."""


class AppUnusable(Exception):
    """`kind` is "missing" (no such module or attribute), "config", "raised" (by its import, or by what a process does
    first) or "died"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
