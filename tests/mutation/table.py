"""The table in docs/guarantees.md that says by what each mutation is noticed, from the catalogue."""

from pathlib import Path

from tests.mutation.catalogue import MUTATIONS
from tests.mutation.weakening import Mutation

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"
BEGIN, END = "<!-- mutations: written by python -m tests.mutation --table -->", "<!-- end of mutations -->"


def table() -> str:
    lines = [*_summary(), "", "| rule | taken away | noticed by |", "|---|---|---|"]
    lines += [f"| {one.rule} | {one.what} | {_by(one)} |" for one in MUTATIONS.values()]
    return "\n".join(lines)


def _summary() -> list[str]:
    """Which guards no schedule tries: they are as good as their tests."""
    by_schedule = [one for one in MUTATIONS.values() if one.test is None]
    seen = {int(one.rule) for one in by_schedule}
    unseen = sorted({int(one.rule) for one in MUTATIONS.values()} - seen)
    return [
        f"{len(MUTATIONS)} mutations: {len(by_schedule)} are noticed by schedules, {len(MUTATIONS) - len(by_schedule)} "
        f"only by the test that is named beside them. No schedule tries the rules",
        f"{', '.join(map(str, unseen))}: what guards them is as good as its tests.",
    ]


def _by(mutation: Mutation) -> str:
    if mutation.test is None:
        return f"schedule {mutation.seed}"
    path, _, test = mutation.test.partition("::")
    return f"[`{test}`](../{path})"


def written() -> str:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def write() -> None:
    PAGE.write_text(written())
