"""Recordings of machines with chips of many vendors: each chip is found on its own machines alone."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from arcforge_core.contracts.device import TRAINING, Capabilities, Identity
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.errors import ConfigError
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.plugins.loader import registry
from arcforge_hw.cuda.vendors import other_vendor
from arcforge_hw.vendors.backend import VendorChip
from arcforge_hw.vendors.evidence import Evidence
from arcforge_hw.vendors.machine import here
from arcforge_hw.vendors.signs import SIGNS

TRACES = {path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "traces").glob("*"))}
ALIASES = {
    "haiguang": "hygon", "muxi": "metax", "suiyuan": "enflame", "kunlun": "kunlunxin", "shengteng": "ascend",
    "hanwuji": "cambricon", "mthreads": "moore_threads",
}  # fmt: skip


def machine(trace: str, **changes) -> Evidence:
    return Evidence(**{name: TRACES[trace][name] for name in ("distributions", "paths", "tools")} | changes)


def backend(vendor: str, where: Evidence | None = None):
    component = registry().get("hardware", vendor)
    return component.load()(component.load_schema()(), where)


@pytest.mark.parametrize("trace", TRACES)
def test_a_chip_is_found_on_its_own_machines_alone(trace):
    answers = {vendor: backend(vendor, machine(trace)).probe() for vendor in SIGNS}
    found = {vendor: answer.reason for vendor, answer in answers.items() if answer.ok}
    vendor, says = TRACES[trace]["vendor"], TRACES[trace]["says"]
    assert found == ({vendor: says} if vendor else {})
    assert all(answer.reason.startswith("no device found: ") for v, answer in answers.items() if v != vendor)


@pytest.mark.parametrize("trace", TRACES)
def test_cuda_is_taken_for_nvidia_s_alone(trace):
    where = machine(trace)
    said = other_vendor(where.distributions["torch"], (), where.distributions, "rocm" in where.distributions["torch"])
    presents_cuda = TRACES[trace]["vendor"] in ("hygon", "metax", "kunlunxin")
    assert said.partition(":")[0] == (TRACES[trace]["vendor"] if presents_cuda else "amd" if trace == "amd" else "")


@pytest.mark.parametrize("trace", ["ascend_a2", "moore_threads", "cambricon", "enflame", "hygon", "metax", "kunlunxin"])
def test_a_chip_without_its_package_says_which_is_missing(trace):
    vendor = TRACES[trace]["vendor"]
    answer = backend(vendor, machine(trace, distributions={"torch": "2.13.0"})).probe()
    assert not answer.ok and f"torch does not use them without {SIGNS[vendor].wanted()}" in answer.reason


@pytest.mark.parametrize("vendor", SIGNS)
def test_nothing_of_a_vendor_is_imported_before_its_chip_is_found(vendor):
    one = backend(vendor)
    assert not one.probe().ok and one.confirm() == one.probe()
    assert not one.module or one.module not in sys.modules
    assert one.identity.vendor == one.name == vendor and one.kernels()


def test_confirm_names_what_a_driver_raises_and_a_runtime_without_devices(monkeypatch):
    ascend = backend("ascend", machine("ascend_a2"))
    assert "but ModuleNotFoundError: No module named 'torch_npu'" in ascend.confirm().reason
    runtime = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace())
    monkeypatch.setattr(torch, "npu", runtime, raising=False)
    assert ascend.confirm().ok and ascend.confirm().reason.endswith("; torch.npu has 2")
    monkeypatch.setattr(runtime, "is_available", lambda: False)
    assert not ascend.confirm().ok and "but torch.npu finds no device" in ascend.confirm().reason


@pytest.mark.parametrize("vendor", SIGNS)
def test_kernels_are_offered_for_the_dtypes_that_the_chip_has(vendor):
    one = backend(vendor)
    kernel = next(kernel for kernel in one.kernels() if kernel.name == f"{vendor}.sparse_mla.blocks")
    for dtype, has in ((torch.float64, one.capabilities.float64), (torch.float32, True)):
        assert kernel.supports(OpCall("sparse_mla", one.identity.device, dtype)).ok == has
    assert not kernel.supports(OpCall("sparse_mla", "cpu", torch.float32))


@pytest.mark.parametrize("alias", ALIASES)
def test_a_vendor_has_its_other_name(alias):
    from arcforge_core.config.compose import compose

    assert compose([f"hardware={alias}"]).hardware.name == ALIASES[alias]


def both(*traces: str) -> Evidence:
    machines = [machine(trace) for trace in traces]
    joined = {**machines[0].distributions, **machines[1].distributions, "torch": machines[0].distributions["torch"]}
    paths = [path for one in machines for path in one.paths]
    return Evidence(joined, paths, {**machines[0].tools, **machines[1].tools})


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        (("hygon", "kunlunxin"), r"usable \(hygon of hygon, kunlunxin of kunlunxin\): name one"),
        (("ascend_a2", "cambricon"), r"usable \(ascend of ascend, cambricon of cambricon\): name one"),
    ],
    ids=["two that torch calls cuda", "two that torch does not know"],
)
def test_chips_of_two_vendors_are_an_error_that_names_both(traces, message, monkeypatch):
    found = both(*traces)
    monkeypatch.setattr("arcforge_hw.vendors.backend.here", lambda: found)
    monkeypatch.setattr("arcforge_hw.cuda.vendors.here", lambda: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=message):
        select_hardware("auto")


def test_this_machine_s_evidence_is_gathered_once_and_names_torch():
    assert here() is here() and here().distributions["torch"].startswith(torch.__version__.partition("+")[0])


def test_a_chip_says_only_in_what_it_differs_from_a_common_one():
    chip = type("Chip", (VendorChip,), {}, vendor="acme", triton="acme", device="acme", distributed="accl")
    assert chip.identity == Identity("acme", "acme", "PrivateUse1", "accl", "acme") and chip.module == "torch_acme"
    assert chip.capabilities == Capabilities(int64=True, bf16=True, collectives=TRAINING)
    shared = type("Shared", (VendorChip,), {}, vendor="acme", triton="acme", float64=True, int64=False)
    assert shared.identity == Identity("acme", "cuda", "CUDA", "nccl", "acme") and shared.module == ""
    assert shared.capabilities == Capabilities(float64=True, bf16=True, collectives=TRAINING)
    with pytest.raises(TypeError, match="unexpected keyword argument 'float65'"):
        type("Misspelt", (VendorChip,), {}, vendor="acme", triton="acme", float65=True)
