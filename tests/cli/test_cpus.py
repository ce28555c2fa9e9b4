"""The number of processors a worker may use: affinity, and the quotas of control groups."""

import math
import os
from pathlib import Path

from everbeat.run.cpus import quota, usable_cpus


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_at_least_one_and_never_more_than_the_affinity() -> None:
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))


def test_a_quota_of_version_2_counts_wherever_it_stands_above(tmp_path: Path) -> None:
    write(tmp_path / "machine/service/cpu.max", "max 100000\n")
    write(tmp_path / "machine/cpu.max", "150000 100000\n")
    write(tmp_path / "cpu.max", "400000 100000\n")

    assert quota("0::/machine/service\n", tmp_path) == 1.5


def test_in_a_container_the_root_is_its_own_group(tmp_path: Path) -> None:
    write(tmp_path / "cpu.max", "50000 100000\n")

    assert quota("0::/\n", tmp_path) == 0.5
    assert quota("0::/docker/of-the-host\n", tmp_path) == 0.5


def test_a_quota_of_version_1_counts(tmp_path: Path) -> None:
    write(tmp_path / "cpu/docker/cpu.cfs_quota_us", "300000\n")
    write(tmp_path / "cpu/docker/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu/cpu.cfs_period_us", "100000\n")

    assert quota("4:cpu,cpuacct:/docker\n1:name=systemd:/docker\n", tmp_path) == 3


def test_no_quota_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path / "cpu.max", "max 100000\n")

    assert quota("0::/\n", tmp_path) == math.inf
    assert quota("", tmp_path) == math.inf
    assert quota("0::/gone\n", tmp_path / "gone") == math.inf
