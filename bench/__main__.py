"""`python -m bench [--scale 0.1] [--only WORDS] [--no-save]`: measure, keep the samples, write RESULTS.md."""

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from bench import tables
from bench.measures import MEASURES

SAMPLES = Path(__file__).parent / "samples"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--scale", type=float, default=1.0, help="amount of work")
    parser.add_argument("--only", default="", help="only measures whose name contains these words")
    parser.add_argument("--no-save", action="store_true", help="print the table, keep nothing")
    asked = parser.parse_args()
    chosen = [measure for measure in MEASURES if asked.only in measure.name]
    started, load_before = datetime.now(UTC), os.getloadavg()
    taken = []
    console = Console(stderr=True)
    with Progress(console=console) as progress:
        bar = progress.add_task("measuring", total=len(chosen))
        for measure in chosen:
            progress.update(bar, description=measure.name)
            samples = [round(sample, 4) for sample in measure.run(asked.scale)]
            taken.append(
                {"name": measure.name, "unit": measure.unit, "target": measure.target, "better": measure.better,
                 "samples": samples}
            )  # fmt: skip
            progress.advance(bar)
    run = {
        "commit": _commit(),
        "command": f"python -m bench {' '.join(sys.argv[1:])}".strip(),
        "started_at": started.isoformat(timespec="seconds"),
        "machine": _machine(),
        "load_before": [round(value, 2) for value in load_before],
        "load_after": [round(value, 2) for value in os.getloadavg()],
        "measures": taken,
    }
    sys.stdout.write(tables.render(run, "(not saved)" if asked.no_save else _name(started)))
    if not asked.no_save:
        path = SAMPLES / _name(started)
        path.write_text(json.dumps(run, indent=1) + "\n")
        tables.write_results(path)
    return 0


def _name(started: datetime) -> str:
    return f"{started:%Y%m%d-%H%M%S}.json"


def _commit() -> str:
    answer = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def _machine() -> dict[str, object]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(pages / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


if __name__ == "__main__":
    sys.exit(main())
