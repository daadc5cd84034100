"""RMSNorm's hand-written backward pass."""

import pytest
import torch

from arcforge_core.ops import reference
from arcforge_hw.cpu.rms_norm import rms_norm


def test_gradcheck():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-5), (x, weight))


@pytest.mark.parametrize("width", [1, 7, 64])
def test_bfloat16_input_on_a_float32_weight(width):
    x = torch.randn(9, width, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    weight = torch.linspace(0.5, 2, width, requires_grad=True)
    outs = [fn(x, weight, 1e-6) for fn in (rms_norm, reference.rms_norm)]
    grads = [torch.autograd.grad(out.float().square().sum(), (x, weight)) for out in outs]
    torch.testing.assert_close(*outs, rtol=1e-2, atol=1e-2)
    for got, wanted in zip(*grads, strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2)


def test_keeps_nothing_but_the_input_and_a_number_per_row():
    x, weight = torch.randn(64, 32, requires_grad=True), torch.ones(32, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        rms_norm(x, weight, 1e-6)
    assert sorted(saved) == [32, 64, 64 * 32]
