"""What a worker was given can not be used: its application, the address to listen on, or the limits of its process."""


class AppUnusable(Exception):
    """`kind` is "missing" (no such module or attribute), "config", "raised" (by its import, or by what a process does
    first) or "died"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class AddressUnusable(Exception):
    """It can not be listened on."""


class LimitUnusable(Exception):
    """It leaves no room for so many processes."""
