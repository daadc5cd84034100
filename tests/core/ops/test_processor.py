import math

import pytest

from arcforge_core.files import cgroups
from arcforge_core.files.cgroups import cgroup_quota
from arcforge_core.ops import processor
from arcforge_core.ops.processor import allowed_cores, usable_threads


@pytest.fixture
def eight_cores(tmp_path, monkeypatch):
    """Eight cores in the affinity, no quota, no variables; returns the folder of the control groups."""
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "CGROUPS_OF_PROCESS", tmp_path / "groups")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return tmp_path / "cgroup"


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"cpu.{name}").write_text(text)


def test_the_smallest_quota_on_the_way_to_the_root_counts(eight_cores, tmp_path):
    assert (cgroup_quota(), allowed_cores()) == (math.inf, 8)
    (tmp_path / "groups").write_text("0::/outer/inner\n")
    group(eight_cores / "outer", max="350000 100000\n")
    group(eight_cores / "outer" / "inner", max="max 100000\n")
    assert (cgroup_quota(), allowed_cores()) == (3.5, 3)
    group(eight_cores / "outer" / "inner", max="50000 100000\n")
    assert (cgroup_quota(), allowed_cores()) == (0.5, 1)
    (tmp_path / "groups").write_text("4:memory:/m\n1:cpu,cpuacct:/box\n0::/\n")
    group(eight_cores / "cpu,cpuacct" / "box", cfs_quota_us="200000\n", cfs_period_us="100000\n")
    assert allowed_cores() == 2
    group(eight_cores / "cpu,cpuacct" / "box", cfs_quota_us="-1\n")
    assert allowed_cores() == 8


def test_omp_num_threads_is_a_limit_unless_torchrun_has_set_it(eight_cores, monkeypatch):
    for text, threads in (("4", 4), (" 5", 5), ("3,2", 3), ("64", 8), ("", 8), ("many", 8), ("1", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert usable_threads() == threads
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert usable_threads() == 8
