"""The CPU backend: what its kernels accept and what it asks of a configuration."""

import pytest
import torch

import arcforge_hw.cpu.backend as backend
from arcforge_core.contracts.hardware import OpCall
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_hw.configs import CpuConfig

OPS = ("rms_norm", "attention_varlen", "mla_decode", "moe_experts", "linear_cross_entropy")


@pytest.fixture
def cpu():
    return backend.Cpu(CpuConfig())


def test_auto_prefers_it_to_the_plain_backend(monkeypatch):
    monkeypatch.setattr("arcforge_core.ops.hardware.registry", backend_registry)
    assert select_hardware("auto").name == "cpu"


def backend_registry():
    """Both CPU backends and nothing else, whatever this machine has."""
    from arcforge_core.registry import Registry, registry

    return Registry({k: v for k, v in registry().claims.items() if k[1] in ("cpu", "torch_cpu")})


@pytest.mark.parametrize("op", OPS)
def test_ops_bind_to_its_kernels(cpu, op):
    ops = Ops(cpu)
    assert ops.bind(OpCall(op, "cpu", torch.float32)).__module__ == f"arcforge_hw.cpu.{op}"


def test_float64_experts_are_left_to_the_reference(cpu):
    ops = Ops(cpu)
    assert ops.bind(OpCall("moe_experts", "cpu", torch.float64)).__module__ == "arcforge_core.ops.reference"
    (choice,) = ops.choices.values()
    assert "float64" in choice.rejected[0][1]


def test_old_torch_without_grouped_mm_is_left_to_the_reference(cpu, monkeypatch):
    monkeypatch.delattr(torch.nn.functional, "grouped_mm")
    assert Ops(cpu).bind(OpCall("moe_experts", "cpu", torch.float32)).__module__ == "arcforge_core.ops.reference"


def test_reference_dispatch_binds_none_of_them(cpu, monkeypatch):
    monkeypatch.setenv("ARCFORGE_DISPATCH", "reference")
    ops = Ops(cpu)
    assert all(ops.bind(OpCall(op, "cpu", torch.float32)).__module__ == "arcforge_core.ops.reference" for op in OPS)
