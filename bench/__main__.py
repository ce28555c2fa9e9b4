"""`python -m bench`: Everbeat, the floor and the peers in one run; keeps the samples, writes RESULTS.md.

python -m bench                             everything; peers are installed at their first use
python -m bench --who everbeat,limit        without peers; --who huey,celery: only these
python -m bench --scale small --no-save     a quick look
python -m bench --render samples/X.json     write RESULTS.md and the charts from a run that was kept
"""

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import side, tables
from bench.aims import CLIENTS
from bench.environments import NotInstalled
from bench.limit.__main__ import KEYS as FLOORS
from bench.peers.catalogue import PEERS
from bench.servers import Servers, servers
from everbeat.bench.catalogue import MEASURES, Measure, matching
from everbeat.bench.figures import Figure, Missing, Run, joined, read_run
from everbeat.bench.place import Ground, Unusable, ground_of
from everbeat.bench.scale import Scale
from everbeat.bench.taking import Recorder, take
from everbeat.config import broker_from_url
from everbeat.errors import EverbeatError

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
CHARTS = HERE / "charts"
RESULTS = HERE / "RESULTS.md"
STORES = ("sqlite", "postgresql")
ROUNDS = 2
"""Everbeat, its floor, and both again: a machine that is slow for a minute is slow for both of them."""
BESIDE = dict.fromkeys(("growth.1m", "growth.5m", "growth.backlog"), "growth.0")
"""What is measured once more, right behind these, because they are held against it."""


def main() -> int:
    asked = _asked()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if asked.render:
        write_results(read_run(asked.render.read_text()), asked.render.name)
        return 0
    recorder = Recorder()
    with servers() as running, _bar() as progress:
        bench = Bench(running, Scale(asked.scale), asked.only, progress)
        bench.measure(asked.who, asked.stores)
        versions = bench.versions()
    command = f"python -m bench {' '.join(sys.argv[1:])}".strip()
    run = recorder.finish(command=command, scale=asked.scale, figures=bench.figures, missing=bench.missing)
    run = replace(run, machine=run.machine | versions)
    if asked.no_save:
        sys.stdout.write(tables.render(run, "(not kept)"))
    else:
        name = f"{run.started_at[:19].translate(str.maketrans('', '', '-:')).replace('T', '-')}.json"
        SAMPLES.mkdir(exist_ok=True)
        (SAMPLES / name).write_text(run.to_json())
        write_results(run, name)
        print(f"{RESULTS} is written from {SAMPLES / name}")
    return 0


def write_results(run: Run, source: str) -> None:
    RESULTS.write_text(tables.render(run, source))
    shutil.rmtree(CHARTS, ignore_errors=True)
    CHARTS.mkdir()
    for name, picture in tables.charts(run).items():
        (CHARTS / name).write_text(picture)


class Bench:
    """Collects figures, and what could not be measured."""

    def __init__(self, running: Servers, scale: Scale, only: Sequence[str], progress: Progress) -> None:
        self.figures: list[Figure] = []
        self.missing: list[Missing] = []
        self._running = running
        self._scale = scale
        self._only = only
        self._progress = progress
        self._bar = progress.add_task("", total=None)

    def measure(self, who: Sequence[str], stores: Sequence[str]) -> None:
        for store in stores:
            self._measure_on(store, who)
        for peer in PEERS:
            if _is_asked(peer.name, who):
                jobs = side.jobs(peer, self._scale.factor, self._wants)
                self._progress.update(self._bar, completed=0, total=len(jobs) + 1)
                self._add(*side.measure_peer(peer, jobs, self._running, self._step))
        self.figures = joined(self.figures)
        self.missing = [*dict.fromkeys(self.missing)]

    def versions(self) -> dict[str, str]:
        return {kind: self._running.version(kind) for kind in self._running.kinds}

    def _measure_on(self, store: str, who: Sequence[str]) -> None:
        """Each measure together with its floor, in turns."""
        ground = self._ground(store) if _is_asked("everbeat", who) else None
        measures = matching(self._only)
        for done, measure in enumerate(measures):
            self._progress.update(
                self._bar, description=f"{store}: {measure.title}", completed=done, total=len(measures)
            )
            has_floor = measure.key in FLOORS and _is_asked("limit", who)
            for _ in range(ROUNDS if ground is not None and has_floor else 1):
                batch = self._everbeat(ground, measure) if ground is not None else None
                if has_floor:
                    self._floor(store, measure.key, batch)
            if ground is not None and measure.key in BESIDE:
                self._everbeat(ground, next(one for one in MEASURES if one.key == BESIDE[measure.key]))

    def _ground(self, store: str) -> Ground | None:
        try:
            return ground_of(None if store == "sqlite" else broker_from_url(self._running.url(store)))
        except (NotInstalled, Unusable, EverbeatError) as error:
            self.missing.append(Missing(subject=f"everbeat on {store}", reason=str(error)))
            return None

    def _everbeat(self, ground: Ground, measure: Measure) -> float | None:
        """How many tasks shared a transaction."""
        figures, missing = take(ground, [measure], self._scale, show=_silently, also=self._running.pids)
        self._add(figures, [replace(one, subject=f"everbeat on {ground.store}, {one.subject}") for one in missing])
        return next((figure.batch for figure in figures), None)

    def _floor(self, store: str, key: str, batch: float | None) -> None:
        try:
            self._add(side.measure_floor(store, self._scale.factor, self._running, key=key, batch=batch), [])
            if store == "postgresql" and key in CLIENTS:
                self._add([side.measure_pgbench(self._scale.factor, self._running, key=key)], [])
        except (NotInstalled, side.Unmeasured) as error:
            self.missing.append(Missing(subject=f"floor of {store}", reason=str(error)))

    def _add(self, figures: "Sequence[Figure]", missing: Sequence[Missing]) -> None:
        self.figures += figures
        self.missing += missing

    def _wants(self, group: str) -> bool:
        return not self._only or any(word.split(".")[0] == group for word in self._only)

    def _step(self, what: str) -> None:
        self._progress.update(self._bar, description=what, advance=1)


def _silently(title: str, done: int, total: int | None) -> None:
    pass


def _is_asked(name: str, who: Sequence[str]) -> bool:
    return not who or name in who


def _bar() -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def _asked() -> argparse.Namespace:
    names = ["everbeat", "limit", *(peer.name for peer in PEERS)]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=[*Scale], default=Scale.FULL, help="amount of work")
    parser.add_argument("--only", type=_words, default=[], metavar="A,B", help="only these measures: drain, latency")
    parser.add_argument("--who", type=_words, default=[], metavar="A,B", help=f"only these of {', '.join(names)}")
    parser.add_argument("--stores", type=_words, default=STORES, metavar="A,B", help="of Everbeat and the floor")
    parser.add_argument("--no-save", action="store_true", help="print the tables, keep nothing")
    parser.add_argument("--render", type=Path, metavar="FILE", help="only write RESULTS.md and charts from this run")
    asked = parser.parse_args()
    unknown = set(asked.who) - set(names)
    if unknown:
        parser.error(f"nobody is called {', '.join(sorted(unknown))}")
    return asked


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


if __name__ == "__main__":
    sys.exit(main())
