"""What the type checkers know: `typed/right.py` is accepted as it is, `typed/wrong.py` refused where it says so."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import everbeat

SOURCE = Path(everbeat.__file__).parents[1]
TYPED = Path(__file__).parent / "typed"
RIGHT, WRONG = TYPED / "right.py", TYPED / "wrong.py"


def expected() -> list[tuple[str, int]]:
    lines = WRONG.read_text().splitlines()
    return [(WRONG.name, number) for number, line in enumerate(lines, start=1) if line.endswith("# wrong")]


def test_mypy_knows_what_is_right_and_what_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = True\nmypy_path = {SOURCE}\n")

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", tmp_path / "cache",
         "--no-error-summary", "--hide-error-context", "--no-pretty", RIGHT, WRONG],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    found = re.findall(r"^(.*?):(\d+): error: ", done.stdout, flags=re.MULTILINE)
    assert sorted({(Path(file).name, int(line)) for file, line in found}) == expected(), done.stdout + done.stderr


def test_pyright_knows_what_is_right_and_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(SOURCE)]}))

    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, RIGHT, WRONG],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    told = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    found = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in told}
    assert sorted(found) == expected(), json.dumps(told, indent=1)


def test_what_is_right_also_runs() -> None:
    spec = importlib.util.spec_from_file_location("right", RIGHT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)

    spec.loader.exec_module(module)

    assert list(module.app.tasks) == ["right.add", "mail.send", "right.nothing", "right.every_kind"]
    assert len(module.configurations()) == 3
