"""Bar charts as SVG, written by hand: readable in a repository, in light and dark."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from everbeat.bench.figures import number

WIDTH = 860
NAMES = 280
VALUES = 190
BAR = 20
GAP = 8
TOP = 58
FOOT = 14
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #24292f; }
    .title { font-size: 16px; font-weight: 600; }
    .hint, .value { fill: #57606a; }
    .own { fill: #1f6feb; } .peer { fill: #8c959f; } .limit { fill: #d4a72c; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; } .hint, .value { fill: #9198a1; } .peer { fill: #656c76; }
    }"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    name: str
    value: float
    kind: str = "peer"
    """"own", "peer" or "limit": its colour."""
    note: str = ""
    """Stands behind the number."""


def bars(title: str, unit: str, rows: Sequence[Bar], *, hint: str = "") -> str:
    """One bar for each row, in the order given; the longest fills the width."""
    height = TOP + len(rows) * (BAR + GAP) + FOOT
    longest = max((row.value for row in rows), default=0.0) or 1.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(title)}">',
        f"  <style>{STYLE}\n  </style>",
        f'  <text class="title" x="0" y="20">{escape(title)}</text>',
        f'  <text class="hint" x="0" y="40">{escape(", ".join(word for word in (unit, hint) if word))}</text>',
    ]
    for place, row in enumerate(rows):
        lines += _bar(row, TOP + place * (BAR + GAP), row.value / longest * (WIDTH - NAMES - VALUES))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bar(row: Bar, top: float, length: float) -> list[str]:
    middle = top + BAR / 2 + 4.5
    said = " ".join(word for word in (number(row.value), row.note) if word)
    length = max(length, 1.0)
    return [
        f'  <text x="{NAMES - 10}" y="{middle:g}" text-anchor="end">{escape(row.name)}</text>',
        f'  <rect class="{row.kind}" x="{NAMES}" y="{top}" width="{length:.1f}" height="{BAR}" rx="3"/>',
        f'  <text class="value" x="{NAMES + length + 8:.1f}" y="{middle:g}">{escape(said)}</text>',
    ]
