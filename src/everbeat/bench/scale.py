"""How much work a benchmark does."""

from enum import StrEnum


class Scale(StrEnum):
    SMALL = "small"
    NORMAL = "normal"
    FULL = "full"

    @property
    def factor(self) -> float:
        return {Scale.SMALL: 0.02, Scale.NORMAL: 0.25, Scale.FULL: 1.0}[self]

    def includes(self, other: "Scale") -> bool:
        order = list(Scale)
        return order.index(other) <= order.index(self)
