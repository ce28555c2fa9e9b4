"""Power loss: the files of a store as they may be found afterwards, opened by the real store.

`EVERBEAT_POWER=N` looks at N images of N/200 different pieces of work instead of the few of every run; so does
`make soak`.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from tests.power.images import DATABASE, Disk
from tests.power.vfs import Op
from tests.power.work import state_of
from tests.words import claim, enqueue, register

from everbeat.config import AppConfig, SQLiteConfig
from everbeat.errors import EverbeatError, StoreUnavailable
from everbeat.store.open import open_store

ROOT = Path(__file__).parents[2]
IMAGES = int(os.environ.get("EVERBEAT_POWER", "100"))
STEPS = 60

State = list[list[object]]


@dataclass(frozen=True, slots=True)
class Image:
    number: int
    files: dict[str, bytes]
    acknowledged: int
    """How many states had been acknowledged."""


@dataclass(slots=True)
class Trace:
    """What one piece of work did to its files, and what it was told in return."""

    entries: list[Op | int]
    """An op, or the number of states that are acknowledged from here on."""
    states: list[State]

    def images(self, count: int, chance: Random) -> Iterator[Image]:
        """At random moments; half of them just after somebody was told that something is stored."""
        told = [index + 1 for index, entry in enumerate(self.entries) if isinstance(entry, int)]
        moments = sorted(
            chance.choice(told) if chance.random() < 0.5 else chance.randrange(len(self.entries) + 1)
            for _ in range(count)
        )
        disk, at, acknowledged = Disk(), 0, 0
        for number, moment in enumerate(moments):
            for entry in self.entries[at:moment]:
                if isinstance(entry, int):
                    acknowledged = entry
                else:
                    disk.apply(entry)
            at = moment
            yield Image(number, disk.after_power_loss(chance), acknowledged)


def record(directory: Path, durability: str, seed: int) -> Trace:
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.power.work", directory / "work.db", directory / "trace", durability, str(seed),
         str(STEPS)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    entries: list[Op | int] = []
    states: list[State] = []
    for line in (directory / "trace").read_text().splitlines():
        said = json.loads(line)
        if isinstance(said, dict):
            states.append(said["state"])
            entries.append(len(states))
        else:
            what, file, offset, data = said
            entries.append(Op(what, file, offset, base64.b64decode(data)))
    return Trace(entries, states)


def found_in(image: Image, directory: Path) -> State | None:
    """What the store says of an image, after it has passed the check and has taken another task. None: no store."""
    place = directory / f"image-{image.number}"
    place.mkdir()
    path = place / "power.db"
    if DATABASE not in image.files:
        return None
    for ending, content in image.files.items():
        Path(f"{path}{ending}").write_bytes(content)
    try:
        store = open_store(AppConfig(broker=SQLiteConfig(path, durability="normal")), create=False)
    except StoreUnavailable as error:
        if "is not an Everbeat store" in str(error):
            return None
        raise
    with closing(store):
        state = state_of(path)
        integrity = store.check_integrity(budget=10.0)
        assert integrity.passed, f"image {image.number}: {integrity.errors}"
        enqueue(store, id="afterwards", priority=1)
        register(store, "heir")
        assert [one.id for one in claim(store, "heir")] == ["afterwards"]
    return state


def problem_with(trace: Trace, image: Image, directory: Path) -> str | None:
    """Nothing, if the image holds all that was acknowledged, and of what was under way all or nothing."""
    try:
        found = found_in(image, directory)
    except (EverbeatError, AssertionError) as error:
        return f"image {image.number}: {error}"
    allowed = (
        trace.states[image.acknowledged - 1 : image.acknowledged + 1] if image.acknowledged else [[], *trace.states[:1]]
    )
    if (found or []) in allowed and (found is not None or image.acknowledged == 0):
        return None
    before = [number for number, state in enumerate(trace.states, 1) if state == found]
    return f"image {image.number}: found is state {before or 'unknown'}, acknowledged were {image.acknowledged}"


def seeds() -> list[int]:
    return list(range(max(2, IMAGES // 200)))


@pytest.mark.timeout(100 + IMAGES)
@pytest.mark.parametrize("seed", seeds())
def test_after_power_loss_everything_acknowledged_is_there_and_the_file_is_sound(tmp_path: Path, seed: int) -> None:
    trace = record(tmp_path / "work", "full", seed)

    images = trace.images(IMAGES // len(seeds()), Random(seed))
    problems = [problem_with(trace, image, tmp_path) for image in images]

    assert [problem for problem in problems if problem] == []


@pytest.mark.timeout(100 + IMAGES)
def test_with_less_durability_the_last_commits_may_be_lost_but_never_one_in_the_middle(tmp_path: Path) -> None:
    trace = record(tmp_path / "work", "normal", 1)

    lost = 0
    for image in trace.images(IMAGES // 4, Random(1)):
        found = found_in(image, tmp_path)
        so_far = [[], *trace.states[: image.acknowledged + 1]]
        assert (found or []) in so_far, f"image {image.number} holds what was never there"
        lost += (found or []) not in so_far[image.acknowledged :]

    assert lost > 0


def test_what_is_recorded_is_what_is_in_the_files(tmp_path: Path) -> None:
    trace, disk = record(tmp_path / "work", "full", 3), Disk()

    for entry in trace.entries:
        if not isinstance(entry, int):
            disk.apply(entry)

    assert {entry.what for entry in trace.entries if not isinstance(entry, int)} >= {"create", "delete", "truncate"}
    assert list(disk.files) == [DATABASE]
    assert bytes(disk.files[DATABASE].content) == (tmp_path / "work" / "work.db").read_bytes()


def test_a_disk_that_only_says_it_has_synced_is_found_out(tmp_path: Path) -> None:
    trace = record(tmp_path / "work", "full", 2)
    lying = [entry for entry in trace.entries if isinstance(entry, int) or entry.what != "sync" or entry.file == ""]

    images = Trace(lying, trace.states).images(40, Random(2))

    assert any(problem_with(trace, image, tmp_path) for image in images)
