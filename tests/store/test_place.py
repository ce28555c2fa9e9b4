"""Where a store can not be."""

from pathlib import Path

import pytest

from everbeat import filesystem
from everbeat.errors import StoreUnavailable
from everbeat.store.sqlite import place
from everbeat.store.sqlite.store import SQLiteStore

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
91 22 254:0 /srv/jobs.db /data/my\\040jobs.db rw,relatime - ext4 /dev/vda rw
92 22 254:0 /srv /data/all rw,relatime - ext4 /dev/vda rw
"""


def test_a_network_file_system_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = filesystem.type_of(tmp_path)
    assert kind is not None
    monkeypatch.setitem(filesystem.NETWORK, kind, "nfs")

    with pytest.raises(StoreUnavailable, match=r"jobs\.db is on a network file system \(nfs\)"):
        SQLiteStore(tmp_path / "jobs.db")

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_mounted_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"91 22 254:0 /srv/jobs.db {tmp_path}/jobs.db rw,relatime - ext4 /dev/vda rw\n")
    monkeypatch.setattr(place, "MOUNTS", mounts)

    with pytest.raises(StoreUnavailable, match=r"mounted by itself.*Mount the directory"):
        SQLiteStore(tmp_path / "jobs.db")


def test_a_directory_that_is_mounted_is_none_of_that() -> None:
    assert place.is_mounted_alone(Path("/data/my jobs.db"), MOUNTS)
    assert not place.is_mounted_alone(Path("/data/all/jobs.db"), MOUNTS)
    assert not place.is_mounted_alone(Path("/data/jobs.db"), "")
