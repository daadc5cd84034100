"""Ops of plugins: registered once, bound by name, and tested by the kit like core's."""

import dataclasses
import sys
import types

import pytest
import torch
from torch import nn

from arcforge_core.cli import conformance
from arcforge_core.contracts.hardware import YES, Kernel
from arcforge_core.ops import Ops, bind_ops, op, specs
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.ops.specs import SAME, SPECS, OpSpec, register_op
from arcforge_core.testing import hardware_checks
from arcforge_core.testing.op_case import OpCase, normal


def acme_gate(x, weight):
    return x * torch.sigmoid(weight)


def acme_gate_cases(g):
    return [OpCase("acme_gate", "rows", {"x": normal(g, 5, 8), "weight": normal(g, 8)}, ("x", "weight"), {"width": 8})]


def acme_gate_large(g):
    return OpCase("acme_gate", "large", {"x": normal(g, 5000, 8), "weight": normal(g, 8)}, (), {"width": 8})


def right(x, weight):
    return x / (1 + torch.exp(-weight))


def wrong_when_large(x, weight):
    return right(x, weight) * (1.0 if len(x) < 4096 else 2.0)


SPEC = OpSpec("acme_gate", ("width",), (SAME,), "acme.cases", defined_in="acme.ops")


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """Makes the modules of a plugin, and forgets its op afterwards."""
    for name, functions in (("ops", (acme_gate,)), ("cases", (acme_gate_cases, acme_gate_large))):
        module = types.ModuleType(f"acme.{name}")
        vars(module).update({function.__name__: function for function in functions})
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "acme", types.ModuleType("acme"))
    monkeypatch.setattr(specs, "SPECS", SPECS)
    yield
    SPECS.pop("acme_gate", None)


def backend(monkeypatch, function):
    """Gives the plain CPU this kernel of the op."""
    kernel = Kernel("acme_gate", "acme.gate", function, lambda call: YES)
    monkeypatch.setattr(TorchCpu, "kernels", lambda self: [kernel])
    return kernel


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = op(acme_gate, width=8)


def test_a_module_binds_it_the_reference_without_a_kernel_and_the_kernel_with_one(monkeypatch):
    register_op(SPEC)
    register_op(dataclasses.replace(SPEC))  # by the backend as well
    from arcforge_core.configs import TorchCpuConfig

    backend(monkeypatch, right)
    x, weight = torch.randn(3, 8), torch.randn(8)
    for ops, wanted in ((Ops(None), acme_gate), (Ops(TorchCpu(TorchCpuConfig())), right)):
        module = Gate()
        bind_ops(module, ops.binder(torch.float32, "cpu"))
        assert torch.equal(module.gate(x, weight), wanted(x, weight))
        assert (module.gate is acme_gate) == (wanted is acme_gate)


def test_the_kit_checks_its_kernels_the_large_case_included(monkeypatch):
    register_op(SPEC)
    results = [
        hardware_checks.check_kernel(backend(monkeypatch, function), "cpu", torch.float32)
        for function in (right, wrong_when_large)
    ]
    assert [result.verdict for result in results] == ["pass", "fail"] and results[1].reason.startswith("large")


def test_the_command_knows_it_after_the_backend_is_built(monkeypatch, capsys):
    backend(monkeypatch, right)
    made = TorchCpu.__init__

    def registering(self, config):
        register_op(SPEC)
        made(self, config)

    monkeypatch.setattr(TorchCpu, "__init__", registering)
    assert conformance.main(["hardware=torch_cpu", "--op", "acme_gate"]) == 0
    assert conformance.main(["hardware=torch_cpu", "--op", "acme_gat"]) == 2
    assert "did you mean 'acme_gate'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "rope"}, "op 'rope' is already that of core"),
        ({"outputs": ("float8",)}, r"outputs \['float8'\] must be of same, wide, index, records"),
        ({"defined_in": "acme.missing"}, "acme.missing has no acme_gate"),
        ({"name": "acme_up"}, "acme.ops has no acme_up"),
        ({"cases_in": "acme.ops"}, "acme.ops has no acme_gate_cases"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        register_op(dataclasses.replace(SPEC, **changes))
    assert "acme_gate" not in SPECS


def test_two_plugins_cannot_have_one_name(monkeypatch):
    register_op(SPEC)
    with pytest.raises(ValueError, match=r"already that of acme\.ops"):
        register_op(dataclasses.replace(SPEC, sizes=("width", "rows")))
