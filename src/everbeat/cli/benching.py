"""Behind `everbeat bench`: choose, measure, and say it in words or as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from everbeat.bench.catalogue import MEASURES, Measure, matching
from everbeat.bench.compare import Compared, compared
from everbeat.bench.figures import FORMAT, Figure, NoRun, Run, number, read_run, times
from everbeat.bench.place import Ground, Unusable, ground_of
from everbeat.bench.scale import Scale
from everbeat.bench.taking import Recorder, take
from everbeat.cli import out
from everbeat.cli.ends import FAILED, USAGE, Refused, like_ctrl_c
from everbeat.cli.grammar import Misused
from everbeat.config import broker_from_url
from everbeat.report.text import Column, clean
from everbeat.secrecy import without_passwords


def chosen(only: Sequence[str] | None) -> list[Measure]:
    measures = matching(word for given in only or () for word in given.split(","))
    if not measures:
        raise Misused(f"nothing is called {', '.join(only or ())}; see everbeat bench --list")
    return measures


def measure(
    measures: Sequence[Measure],
    scale: Scale,
    *,
    db: str | None,
    processes: int | None,
    compare: Path | None,
    as_json: bool,
) -> None:
    earlier = None if compare is None else _read(compare)
    try:
        ground = ground_of(None if db is None else broker_from_url(db, where="--db"), processes=processes)
    except Unusable as error:
        raise Refused(f"bench: {error}", code=USAGE) from error
    run = _measure(ground, measures, scale)
    if as_json:
        said: dict[str, Any] = {"format": FORMAT} | asdict(run)
        out.data(said if earlier is None else said | {"compared": _plain(compared(earlier, run))})
    else:
        _show(run, ground, earlier)
    if not run.figures:
        raise SystemExit(FAILED)


def _read(path: Path) -> Run:
    try:
        return read_run(path.read_text())
    except (OSError, UnicodeError, NoRun) as error:
        raise Refused(f"--compare {path}: {error}", code=USAGE) from error


def _measure(ground: Ground, measures: Sequence[Measure], scale: Scale) -> Run:
    recorder = Recorder()
    with like_ctrl_c(), out.stages() as show:
        figures, missing = take(ground, measures, scale, show=show)
    command = " ".join(["everbeat bench --scale", scale, *(f"--only {one.key}" for one in measures)])
    if len(measures) == len(MEASURES):
        command = f"everbeat bench --scale {scale}"
    return recorder.finish(command=command, scale=scale, figures=figures, missing=missing)


# -- words ------------------------------------------------------------------------------------------------------------


def show_list(measures: Sequence[Measure], *, as_json: bool) -> None:
    if as_json:
        out.data([{"key": one.key, "title": one.title, "unit": one.unit, "scale": one.least} for one in measures])
        return
    columns = [Column("MEASURE"), Column("WHAT", wraps=True), Column("UNIT"), Column("FROM SCALE")]
    out.rows(columns, [[one.key, one.title, one.unit, one.least] for one in measures], empty="")


def _show(run: Run, ground: Ground, earlier: Run | None) -> None:
    facts = run.machine
    out.say(f"{clean(without_passwords(ground.location))}, {ground.processes} processes, scale {run.scale}")
    out.say(f"{facts['cores']} cores ({clean(facts['processor'])}), {facts['memory_gb']} GB, {facts['system']}, "
            f"Python {facts['python']}, SQLite {facts['sqlite']}, load {run.load_before[0]}\n")  # fmt: skip
    if earlier is None:
        columns = [Column("MEASURE"), Column("WHAT", wraps=True), Column("MEDIAN", right=True),
                   Column("P95", right=True), Column("WORST", right=True), Column("UNIT"),
                   Column("N", right=True), Column("TO REACH")]  # fmt: skip
        out.rows(columns, [_cells(figure) for figure in run.figures], empty="Nothing was measured.")
    else:
        _show_compared(compared(earlier, run), earlier)
    for one in run.missing:
        out.say(f"not measured: {clean(one.subject)}: {clean(one.reason)}")
    busy = max((figure.foreign_cores or 0.0 for figure in run.figures), default=0.0)
    if busy > 0.3:
        out.say(f"\nOther processes used up to {busy:.1f} cores meanwhile: these figures are too low.")


def _cells(figure: Figure) -> list[object]:
    said = {None: "", True: f"{figure.target}: yes", False: f"{figure.target}: no"}[figure.reached]
    return [figure.key, figure.title, number(figure.median), number(figure.p95), number(figure.worst), figure.unit,
            len(figure.samples), said]  # fmt: skip


def _show_compared(rows: Sequence[Compared], earlier: Run) -> None:
    out.say(f"compared with {clean(earlier.commit)} of {clean(earlier.started_at)}, scale {clean(earlier.scale)}\n")
    columns = [Column("MEASURE"), Column("WHAT", wraps=True), Column("BEFORE", right=True), Column("NOW", right=True),
               Column("UNIT"), Column("RATIO", right=True), Column("CHANGE")]  # fmt: skip
    out.rows(columns, [_compared_cells(row) for row in rows], empty="Nothing was measured.")


def _compared_cells(row: Compared) -> list[object]:
    figure = row.figure
    return [figure.key, figure.title, _or_dash(row.before), _or_dash(row.now), figure.unit,
            "-" if row.ratio is None else times(row.ratio), row.change]  # fmt: skip


def _or_dash(value: float | None) -> str:
    return "-" if value is None else number(value)


def _plain(rows: Sequence[Compared]) -> list[dict[str, Any]]:
    return [
        {"key": row.figure.key, "subject": row.figure.subject, "store": row.figure.store, "before": row.before,
         "now": row.now, "ratio": row.ratio, "change": row.change}
        for row in rows
    ]  # fmt: skip
