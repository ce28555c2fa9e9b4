"""`python -m bench.crash`: try every system under every fault; keep the samples, write the tables.

python -m bench.crash                                     everything, about two hours; mostly waiting
python -m bench.crash --who huey,celery --faults freeze   a part of it; the rest of the samples stays
python -m bench.crash --render                            only write the tables from the samples
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.crash import tables
from bench.crash.account import Run, Trial, read_trial
from bench.crash.faults import FAULTS, Fault, watch
from bench.crash.stage import Stage, Unusable
from bench.crash.systems import SYSTEMS, System
from bench.environments import ROOT, NotInstalled, environment, version_of
from bench.servers import Servers, servers
from everbeat.bench import machine

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
RESULTS = HERE / "RESULTS.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"


def main() -> int:
    asked = _asked()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not asked.render:
        with servers() as running:
            for system in SYSTEMS:
                if not asked.who or system.key in asked.who:
                    _try(system, [fault for fault in FAULTS if not asked.faults or fault.name in asked.faults], running)
    if not asked.no_tables:
        write_tables()
    return 0


def write_tables() -> None:
    kept = [read_samples(system) for system in SYSTEMS]
    RESULTS.write_text(tables.render(kept))
    GUARANTEES.write_text(tables.put_into(GUARANTEES.read_text(), tables.summary(kept)))


def read_samples(system: System) -> tables.Kept:
    path = _samples_of(system)
    if not path.exists():
        return tables.Kept(system=system, versions={}, trials=[])
    said = json.loads(path.read_text())
    return tables.Kept(system=system, versions=said["versions"], trials=[read_trial(trial) for trial in said["trials"]])


def try_one(system: System, variant: str, fault: Fault, python: Path, running: Servers) -> Trial:
    """Raises Unusable or NotInstalled."""
    load = machine.load()[0]
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="everbeat-crash-", ignore_cleanup_errors=True) as directory:
        stage = Stage(system, variant, python=python, url=_url(system, variant, Path(directory), running),
                      directory=Path(directory))  # fmt: skip
        try:
            stage.open()
            happened = fault.happens(stage, running)
            states = watch(stage, fault, happened)
            watched = (time.monotonic_ns() - happened.at_ns) / 1e9
            accepted = stage.accepted()
            runs = _runs(stage, happened.at_ns, set(accepted))
        finally:
            stage.close()
    return Trial(
        variant=variant, fault=fault.name, taken_at=taken_at, commit=_commit(), load=[load, machine.load()[0]],
        accepted=accepted, runs=runs, states=states, watched=round(watched, 1), restarts=stage.restarts,
        frozen=list(happened.frozen), believed=list(happened.believed),
    )  # fmt: skip


def _try(system: System, faults: list[Fault], running: Servers) -> None:
    try:
        python = environment(system.adapter) if system.is_peer else Path(sys.executable)
        version = version_of(python, system.package)
    except (NotInstalled, OSError, subprocess.SubprocessError) as error:
        print(f"{system.name}: could not be installed: {error}", file=sys.stderr)
        return
    for fault in faults:
        for variant in system.variants:
            if not fault.applies(system, variant):
                continue
            try:
                trial = try_one(system, variant, fault, python, running)
            except (NotInstalled, Unusable) as error:
                print(f"{system.name}, {variant}: {fault.title}: {error}", file=sys.stderr)
                continue
            _keep(system, version, running, trial)
            print(f"{system.name}, {variant}: {fault.title}: {tables.in_short(trial)}", flush=True)


def _keep(system: System, version: str, running: Servers, trial: Trial) -> None:
    """In the place of an earlier one with the same setting and fault."""
    kept = read_samples(system)
    trials = [one for one in kept.trials if (one.variant, one.fault) != (trial.variant, trial.fault)] + [trial]
    versions = kept.versions | {system.package: version} | {kind: running.version(kind) for kind in running.kinds}
    SAMPLES.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(one.to_json(), separators=(",", ":")) for one in trials)
    head = json.dumps({"system": system.name, "versions": versions, "machine": machine.facts()})[:-1]
    _samples_of(system).write_text(f'{head}, "trials": [\n{lines}\n]}}\n')


def _samples_of(system: System) -> Path:
    return SAMPLES / f"{system.key}.json"


def _url(system: System, variant: str, directory: Path, running: Servers) -> str:
    kind = system.server(variant)
    return f"sqlite:///{directory}/tasks.db" if kind is None else running.url(kind)


def _runs(stage: Stage, fault_ns: int, accepted: set[int]) -> list[Run]:
    lines = [line for line in stage.ledger() if line.number in accepted]
    ends = {line.run: _since(fault_ns, line.at_ns) for line in lines if line.word == "end"}
    return [
        Run(number=line.number, began=_since(fault_ns, line.at_ns), ended=ends.get(line.run))
        for line in lines if line.word == "begin"
    ]  # fmt: skip


def _since(fault_ns: int, at_ns: int) -> float:
    return round((at_ns - fault_ns) / 1e9, 3)


def _commit() -> str:
    said = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", "src"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip()


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=__doc__.splitlines()[0])
    keys, names = [system.key for system in SYSTEMS], [fault.name for fault in FAULTS]
    parser.add_argument("--who", type=_words, default=[], metavar="A,B", help=f"only these of {', '.join(keys)}")
    parser.add_argument("--faults", type=_words, default=[], metavar="A,B", help=f"only these of {', '.join(names)}")
    parser.add_argument("--no-tables", action="store_true", help="only keep samples; several may run at once so")
    parser.add_argument("--render", action="store_true", help="only write the tables, from the samples")
    asked = parser.parse_args()
    unknown = (set(asked.who) - set(keys)) | (set(asked.faults) - set(names))
    if unknown:
        parser.error(f"nothing is called {', '.join(sorted(unknown))}")
    return asked


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


if __name__ == "__main__":
    sys.exit(main())
