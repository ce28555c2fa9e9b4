"""A workflow as a picture: text for terminals, Mermaid for pages. Names are users' words: they can forge neither."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from everbeat.report.text import clean

SHAPES = {"task": ("[", "]"), "map": ("[[", "]]"), "workflow": ("([", "])")}
MARKS = {"map": " (map)", "workflow": " (workflow)"}
COLOURS = {
    "COMPLETED": "fill:#d5f5d5,stroke:#2a7a2a",
    "FAILED": "fill:#f9d0d0,stroke:#a02020",
    "RUNNING": "fill:#d0e4f9,stroke:#2050a0",
    "SKIPPED": "fill:#eeeeee,stroke:#888888,stroke-dasharray:4",
    "CANCELLED": "fill:#eeeeee,stroke:#888888",
}
SHOWN = 6
"""So many inputs of a node are named in a line; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    name: str
    kind: str
    status: str | None
    after: Sequence[str]
    note: str | None = None
    inside: Sequence["Drawn"] = field(default_factory=list)


def as_text(title: str, nodes: Sequence[Drawn]) -> str:
    return "\n".join([clean(title), *_lines(nodes, "  ")])


def as_mermaid(nodes: Sequence[Drawn]) -> str:
    lines = ["flowchart TD"]
    coloured: dict[str, list[str]] = {}
    _draw(nodes, "n", lines, "  ", coloured)
    for status, style in COLOURS.items():
        if status in coloured:
            lines += [f"  classDef {status} {style}", f"  class {','.join(coloured[status])} {status}"]
    return "\n".join(lines)


def _lines(nodes: Sequence[Drawn], indent: str) -> list[str]:
    lines = []
    for node in nodes:
        said = f"{indent}{clean(node.name)}{MARKS.get(node.kind, '')}"
        if node.status is not None:
            said += f"  {node.status}"
        if node.after:
            named = ", ".join(map(clean, node.after[:SHOWN]))
            more = len(node.after) - SHOWN
            said += f"  <- {named}{f' and {more} more' if more > 0 else ''}"
        if node.note:
            said += f"  {clean(node.note)}"
        lines += [said, *_lines(node.inside, f"{indent}  ")]
    return lines


def _draw(nodes: Sequence[Drawn], prefix: str, lines: list[str], indent: str, coloured: dict[str, list[str]]) -> None:
    """Adds lines, and the ids of nodes by their status."""
    ids = {node.name: f"{prefix}{number}" for number, node in enumerate(nodes)}
    for node in nodes:
        begin, end = SHAPES[node.kind]
        lines.append(f'{indent}{ids[node.name]}{begin}"{_label(node)}"{end}')
        if node.status is not None:
            coloured.setdefault(node.status, []).append(ids[node.name])
        if node.inside:
            lines.append(f'{indent}subgraph {ids[node.name]}s["{_quoted(node.name)}"]')
            _draw(node.inside, f"{ids[node.name]}_", lines, f"{indent}  ", coloured)
            lines.append(f"{indent}end")
            lines.append(f"{indent}{ids[node.name]} -.-> {ids[node.name]}s")
    for node in nodes:
        lines += [f"{indent}{ids[before]} --> {ids[node.name]}" for before in node.after if before in ids]


def _label(node: Drawn) -> str:
    return _quoted(node.name) if node.status is None else f"{_quoted(node.name)}<br/>{node.status}"


def _quoted(name: str) -> str:
    """Nothing in it can end the quotes or begin a tag."""
    words = clean(name).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
    return words.replace("#", "&num;")
