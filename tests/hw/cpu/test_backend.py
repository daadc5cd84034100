"""The CPU backend: what its kernels accept and what it asks of a configuration."""

import pytest
import torch

import arcforge_hw.cpu.backend as backend
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.testing.hardware_checks import check_hardware
from arcforge_core.testing.small_models import small_config
from arcforge_hw.configs import CpuConfig

OPS = ("rms_norm", "attention_varlen", "mla_decode", "gated_delta_rule", "moe_experts", "linear_cross_entropy")
REFERENCE = "arcforge_core.ops.reference"
OURS = ("arcforge_hw.cpu.", "arcforge_hw.torch_ops.")


@pytest.fixture
def cpu():
    return backend.Cpu(CpuConfig())


def test_auto_prefers_it_to_the_plain_backend(monkeypatch):
    monkeypatch.setattr("arcforge_core.ops.hardware.registry", backend_registry)
    assert select_hardware("auto").name == "cpu"


def backend_registry():
    """Both CPU backends and nothing else, whatever this machine has."""
    from arcforge_core.plugins.loader import registry
    from arcforge_core.plugins.registry import Registry

    return Registry({k: v for k, v in registry().claims.items() if k[1] in ("cpu", "torch_cpu")})


@pytest.mark.parametrize("op", OPS)
def test_ops_bind_to_its_kernels(cpu, op):
    ops = Ops(cpu)
    assert ops.bind(OpCall(op, "cpu", torch.float32)).__module__.startswith(OURS)


def test_bfloat16_products_are_converted_without_a_compiler_too(cpu, monkeypatch):
    monkeypatch.setattr(backend, "native_kernels", list)
    assert Ops(cpu).bind(OpCall("linear", "cpu", torch.bfloat16)).__module__ == "arcforge_hw.torch_ops.bf16_product"


def test_float64_experts_are_left_to_the_reference(cpu):
    ops = Ops(cpu)
    assert ops.bind(OpCall("moe_experts", "cpu", torch.float64)).__module__.startswith(REFERENCE)
    (choice,) = ops.choices.values()
    assert "float64" in choice.rejected[0][1]


@pytest.mark.parametrize("size", ["hidden", "width"])
@pytest.mark.parametrize(("dtype", "fits"), [(torch.float32, 12), (torch.bfloat16, 24)])
def test_experts_of_odd_sizes_are_left_to_the_reference(cpu, size, dtype, fits):
    ops, sizes = Ops(cpu), {"experts": 4, "hidden": 16, "width": 16}
    odd = ops.bind(OpCall("moe_experts", "cpu", dtype, sizes=sizes | {size: fits + 2}))
    assert odd.__module__.startswith(REFERENCE)
    assert f"{size}={fits + 2}" in next(iter(ops.choices.values())).rejected[0][1]
    even = ops.bind(OpCall("moe_experts", "cpu", dtype, sizes=sizes | {size: fits}))
    assert even.__module__.startswith(OURS)


def test_a_model_with_experts_of_odd_sizes_runs(cpu):
    config = small_config(hidden_size=15, moe_intermediate_size=7)
    out = build_model(config, ReferenceAttentionConfig(), Ops(cpu))(torch.arange(8).view(1, 8) % config.vocab_size)
    out.logits.sum().backward()
    assert out.logits.isfinite().all()


def test_old_torch_without_grouped_mm_is_left_to_the_reference(cpu, monkeypatch):
    monkeypatch.delattr(torch.nn.functional, "grouped_mm")
    assert Ops(cpu).bind(OpCall("moe_experts", "cpu", torch.float32)).__module__.startswith(REFERENCE)


def test_reference_dispatch_binds_none_of_them(cpu, monkeypatch):
    monkeypatch.setenv("ARCFORGE_DISPATCH", "reference")
    ops = Ops(cpu)
    assert all(ops.bind(OpCall(op, "cpu", torch.float32)).__module__.startswith(REFERENCE) for op in OPS)


@pytest.mark.nightly(reason="every kernel, with new values each time")
@pytest.mark.parametrize("seed", range(20))
def test_the_kit_finds_no_fault_whatever_is_drawn(cpu, seed):
    faults = [result for result in check_hardware(cpu, seed=1000 * seed) if result.verdict == "fail"]
    assert faults == []
