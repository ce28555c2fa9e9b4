"""What a worker may still do: every reason to do less is noted here, and what follows from it is said here."""

from dataclasses import dataclass


@dataclass(slots=True)
class Mandate:
    is_draining: bool = False
    """It claims nothing more, and ends when what it has is done."""
    is_dismissed: bool = False
    """Its processes are being ended."""
    is_fenced: bool = False
    """Others have declared it dead."""
    is_displaced: bool = False
    """The store is not the one that we entered (PROTOCOL 8): nothing is written to it, outcomes are kept."""
    is_full: bool = False
    """No more outcomes can be kept (PROTOCOL 30)."""

    @property
    def is_closing(self) -> bool:
        """No process is started any more, and nothing claimed."""
        return self.is_draining or self.is_dismissed or self.is_fenced

    @property
    def starts_tasks(self) -> bool:
        return not (self.is_closing or self.is_full or self.is_displaced)
