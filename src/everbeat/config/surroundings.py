"""What the surroundings of the process say where the code says nothing: its variables, then one file.

The file is `everbeat.toml`, `everbeat.yaml` or the part [tool.everbeat] of pyproject.toml in the working directory, or
the one that EVERBEAT_CONFIG names. Two of them are refused: nobody could say which one counts.

The only place that reads the environment or a file. Asked only when a configuration leaves something out; a file is
parsed again only when it has changed. Nothing here imports user code.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from everbeat.config import environment, files
from everbeat.config.catalogue import CONFIG, RECOVERY_ENABLED
from everbeat.config.found import Found, Source
from everbeat.config.rules import Flag

NAMES = ("everbeat.toml", "everbeat.yaml", "everbeat.yml", "pyproject.toml")
MAX_BYTES = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    sources: tuple[Source, ...]
    """The strongest first."""
    problems: tuple[str, ...]

    def find(self, key: str) -> Found | None:
        return next((source.found[key] for source in self.sources if key in source.found), None)


def look_around() -> Surroundings:
    variables = environment.read(os.environ)
    named = os.environ.get(CONFIG)
    told, problems = _named_file(named) if named else _file_here()
    return Surroundings(sources=(variables, *told), problems=(*variables.problems, *problems))


def recovery_is_switched_off() -> tuple[bool, str | None]:
    """Whether EVERBEAT_RECOVERY_ENABLED says no, and what is wrong with it. It beats everything else."""
    text = os.environ.get(RECOVERY_ENABLED)
    if not text:
        return False, None
    value = Flag().from_text(text)
    return value is False, Flag().problem(RECOVERY_ENABLED, value)


def _named_file(name: str) -> tuple[list[Source], list[str]]:
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:  # of ~somebody
        return [], [f"{CONFIG}: {name} can not be found: {error}"]
    if path.suffix not in (".toml", ".yaml", ".yml"):
        return [], [f"{CONFIG}: {name} is neither .toml nor .yaml"]
    source, problems = _read(path)
    if source is None and not problems:
        return [], [f"{CONFIG}: {path} has no [tool.everbeat]"]
    return _listed(source), [f"{CONFIG}: {problem}" for problem in problems] if source is None else problems


def _file_here() -> tuple[list[Source], list[str]]:
    present = [Path(name) for name in NAMES if os.path.lexists(name)]
    told, problems = [], []
    for path in present:
        source, wrong = _read(path)
        problems += wrong
        told += [(path, source)] if source is not None else []
    if len(told) > 1:
        names = " and ".join(path.name for path, _ in told)
        problems.insert(0, f"{names} both hold settings in {os.getcwd()}; keep one, or name one with {CONFIG}")
        return [], problems
    return [source for _, source in told], problems


def _read(path: Path) -> tuple[Source | None, list[str]]:
    """What the file says, and its problems. None: nothing about us."""
    try:
        absolute = Path(os.path.abspath(path))
        status = os.stat(absolute)
        if status.st_size > MAX_BYTES:
            return None, [f"{absolute} can not be read: it is larger than {MAX_BYTES} bytes"]
        source = _parsed(absolute, (status.st_ino, status.st_mtime_ns, status.st_size))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return None, [f"{path} can not be read: {reason}"]
    return source, list(source.problems) if source is not None else []


@lru_cache(maxsize=8)
def _parsed(path: Path, version: tuple[int, ...]) -> Source | None:
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES)
    if path.name == "pyproject.toml" and b"everbeat" not in raw:
        return None
    return files.read(path, raw.decode())


def _listed(source: Source | None) -> list[Source]:
    return [] if source is None else [source]
