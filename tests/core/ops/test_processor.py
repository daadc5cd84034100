import json
import math

import pytest
import torch

from arcforge_core.files import cgroups
from arcforge_core.files.cgroups import cgroup_quota
from arcforge_core.ops import compat, processor
from arcforge_core.ops.processor import allowed_cores, measure_rates, product_rates, usable_threads


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


def test_rates_are_measured_once_for_a_processor_and_all_processes_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    measured = iter([{"bf16": 1.0, "fp32": 2.0}, {"bf16": 9.0, "fp32": 2.0}, {"bf16": 5.0, "fp32": 4.0}])
    monkeypatch.setattr(processor, "measure_rates", lambda: next(measured))
    assert product_rates() == product_rates() == {"bf16": 1.0, "fp32": 2.0}
    (file,) = (tmp_path / "processor").iterdir()
    assert torch.__version__ in json.loads(file.read_text())["processor"]
    monkeypatch.setattr(processor, "processor_name", lambda: "another")
    assert product_rates()["bf16"] == 9.0 and len(list((tmp_path / "processor").iterdir())) == 2
    monkeypatch.undo()
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    monkeypatch.setattr(processor, "measure_rates", lambda: next(measured))
    file.write_text("{")
    assert product_rates() == {"bf16": 5.0, "fp32": 4.0} == json.loads(file.read_text())["flops"], "damage is replaced"


def test_of_two_processes_that_measure_together_the_first_decides(tmp_path, monkeypatch):
    """The ranks of a run would take different precisions otherwise."""
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path))
    first, second = {"bf16": 1.0, "fp32": 2.0}, {"bf16": 3.0, "fp32": 2.0}

    def measure():
        monkeypatch.setattr(processor, "measure_rates", lambda: first)
        assert product_rates() == first, "the other process is done while this one still measures"
        return second

    monkeypatch.setattr(processor, "measure_rates", measure)
    assert product_rates() == first == product_rates()


def test_a_cache_that_cannot_be_written_costs_a_measurement_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(processor, "measure_rates", lambda: {"bf16": 1.0, "fp32": 2.0})
    assert product_rates() == {"bf16": 1.0, "fp32": 2.0}


def test_a_measurement_is_short_and_takes_the_fastest_product(monkeypatch):
    monkeypatch.setattr(processor, "SIZE", 32)
    now = [0.0]

    def mm(a, b):
        now[0] += next(durations) if a.dtype == torch.bfloat16 else 0.01

    durations = iter([1.0, 0.1, 0.05, 0.1, 0.1, 0.1])
    monkeypatch.setattr(processor.torch, "mm", mm)
    monkeypatch.setattr(processor.time, "perf_counter", lambda: now[0])
    rates = measure_rates()
    assert rates == {"bf16": pytest.approx(2 * 32**3 / 0.05), "fp32": pytest.approx(2 * 32**3 / 0.01)}
    assert now[0] < 1.01 + processor.SECONDS + 0.2


def test_bf16_is_taken_where_it_is_measured_to_be_faster(monkeypatch):
    """A processor with AVX512_BF16 was seen at 145 GFLOP/s in bf16 and 316 in fp32."""
    monkeypatch.setattr(compat, "has_bf16", lambda: True)
    for bf16, fp32 in ((145e9, 316e9), (900e9, 316e9)):
        monkeypatch.setattr(compat, "product_rates", lambda bf16=bf16, fp32=fp32: {"bf16": bf16, "fp32": fp32})
        compat.fast_bf16.cache_clear()
        assert compat.fast_bf16("cpu") is (bf16 > fp32)
        name = "bf16" if bf16 > fp32 else "fp32"
        assert compat.why_precision("cpu") == f"{name}: measured bf16 {bf16 / 1e9:.0f} GFLOP/s, fp32 316 GFLOP/s"
    monkeypatch.setattr(compat, "has_bf16", lambda: False)
    compat.fast_bf16.cache_clear()
    assert compat.fast_bf16("cpu") is False and compat.fast_bf16("cuda") is True
    assert compat.why_precision("cpu") == "fp32: this processor has no bfloat16 instructions"
    compat.fast_bf16.cache_clear()
