"""A number that only grows, or the moment of something, kept beside the records it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float
