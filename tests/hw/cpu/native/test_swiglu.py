"""SwiGLU in C++: the reference's values and gradients, or the reference where C++ would read other bytes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.ops import reference
from arcforge_hw.cpu.native import swiglu as module
from arcforge_hw.cpu.native.swiglu import swiglu


def inputs(shape, dtype, learns=True):
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=draw).mul(3).to(dtype).requires_grad_(learns) for _ in range(2)]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9000), st.sampled_from([(torch.float32, 1e-5), (torch.bfloat16, 2**-7)]))
def test_values_and_gradients_are_those_of_the_reference(count, kind):
    dtype, tolerance = kind
    gate, up = inputs((count,), dtype)
    with torch.no_grad():
        assert torch.equal(swiglu(gate, up), swiglu(*inputs((count,), dtype)).detach())
    grad = torch.randn(count, generator=torch.Generator().manual_seed(4)).to(dtype)
    found = torch.autograd.grad(swiglu(gate, up), (gate, up), grad)
    wide = [x.detach().double().requires_grad_() for x in (gate, up)]
    wanted = torch.autograd.grad(reference.swiglu(*wide), wide, grad.double())
    torch.testing.assert_close(swiglu(gate, up), reference.swiglu(gate, up), rtol=tolerance, atol=1e-6)
    for ours, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=2 * tolerance, atol=4 * tolerance)


def test_one_input_alone_can_be_differentiated():
    gate, up = inputs((40, 3), torch.float32)
    same = gate.detach().requires_grad_()
    swiglu(gate, up.detach()).sum().backward()
    reference.swiglu(same, up.detach()).sum().backward()
    torch.testing.assert_close(gate.grad, same.grad)


@pytest.mark.parametrize("form", ["views", "other dtypes", "float64", "no values", "broadcast"])
def test_other_inputs_are_the_references(form, monkeypatch):
    monkeypatch.setattr(module, "_forward_kernel", lambda *_: pytest.fail("C++ was called"))
    gate, up = inputs((6, 8), torch.float32)
    gate, up = {
        "views": (gate[:, ::2], up[:, ::2]), "other dtypes": (gate, up.bfloat16()), "no values": (gate[:0], up[:0]),
        "float64": (gate.double(), up.double()), "broadcast": (gate, up[:1]),
    }[form]  # fmt: skip
    assert torch.equal(swiglu(gate, up), reference.swiglu(gate, up))


def test_large_values_have_finite_gradients():
    gate = torch.tensor([200.0, -200.0, 3e38, -3e38], requires_grad=True)
    swiglu(gate, torch.ones(4)).sum().backward()
    assert gate.grad.tolist() == [1.0, 0.0, 1.0, 0.0]
