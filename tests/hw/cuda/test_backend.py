"""The CUDA backend without a GPU: it says why not, and declines other devices."""

import pytest
import torch

import arcforge_hw.cuda.backend as backend
from arcforge_core.contracts.hardware import OpCall
from arcforge_hw.configs import CudaConfig


@pytest.fixture
def cuda():
    return backend.Cuda(CudaConfig())


def test_a_torch_without_cuda_is_a_reason(cuda, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    probe = cuda.probe()
    assert not probe.ok
    assert "built without CUDA" in probe.reason


def test_no_device_is_a_reason(cuda, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds no CUDA device" in cuda.probe().reason


def test_without_triton_torch_runs_and_says_so(cuda, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    monkeypatch.setattr(backend, "missing_triton", lambda: "triton is not installed: pip install 'arcforge-hw[cuda]'")
    probe = cuda.confirm()
    assert probe.ok and cuda.probe().ok
    assert probe.reason.startswith("2 x NVIDIA H100; triton is not installed")
    assert not [kernel.name for kernel in cuda.kernels() if kernel.name.endswith(".triton")]


@pytest.mark.parametrize("name", ["MetaX C500", "DCU BW1000", "P800 OAM", "AMD Instinct MI300X"])
def test_a_device_that_another_vendor_made_is_not_ours(cuda, monkeypatch, name):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    answer = cuda.confirm()
    assert not answer.ok and repr(name) in answer.reason


def test_a_torch_that_another_vendor_built_is_not_ours(cuda, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "__version__", "2.10.0+metax3.8.1.0")
    assert "metax: torch is 2.10.0+metax3.8.1.0" in cuda.probe().reason and not cuda.probe().ok


@pytest.mark.parametrize(("name", "flops", "rate"), [("NVIDIA H200", 989e12, 4.8e12), ("Acme 1", None, None)])
def test_the_roofline_is_that_of_the_data_sheet(cuda, monkeypatch, name, flops, rate):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("Properties", (), {"total_memory": 7}))
    roofline = cuda.roofline()
    assert roofline.memory_bytes == 7
    assert roofline.memory_bytes_per_s == rate
    assert (roofline.matmul_flops or {}).get("bfloat16") == flops


SIZES = {
    "cuda.newton_schulz.gram": {"rows": 64, "columns": 256},
    "cuda.newton_schulz.triton": {"rows": 512, "columns": 512},
}


def test_kernels_are_for_the_gpu_and_for_precisions_they_compute(cuda):
    for kernel in cuda.kernels():
        if kernel.name == "cuda.gated_delta_rule.fla":  # see test_gated_delta_rule.py
            continue
        sizes = SIZES.get(kernel.name, {})
        assert kernel.supports(OpCall(kernel.op, "cuda", torch.float32, sizes=sizes)).ok
        assert "not cuda" in kernel.supports(OpCall(kernel.op, "meta", torch.float32, sizes=sizes)).reason
        assert "float16" in kernel.supports(OpCall(kernel.op, "cuda", torch.float16, sizes=sizes)).reason


def test_every_kernel_has_its_own_name_and_an_order(cuda):
    kernels = cuda.kernels()
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    assert len({(kernel.op, kernel.priority) for kernel in kernels}) == len(kernels)


@pytest.mark.parametrize("size", ["inputs", "outputs"])
def test_integer_products_of_odd_sizes_are_declined(cuda, size):
    [kernel] = [kernel for kernel in cuda.kernels() if kernel.op == "quant_linear"]
    sizes = {"inputs": 64, "outputs": 32, "bits": 8}
    assert kernel.supports(OpCall("quant_linear", "cuda", torch.bfloat16, sizes=sizes)).ok
    verdict = kernel.supports(OpCall("quant_linear", "cuda", torch.bfloat16, sizes=sizes | {size: 36}))
    assert f"{size}=36" in verdict.reason
