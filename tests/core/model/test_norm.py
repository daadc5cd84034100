import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from arcforge_core.model.norm import Linear, RMSNorm
from arcforge_core.ops import Ops, bind_ops


@given(st.integers(1, 17), st.sampled_from([1e-6, 1e-5]), st.integers(0, 99))
def test_rms_norm_equals_torch(width, eps, seed):
    torch.manual_seed(seed)
    norm = RMSNorm(width, eps)
    nn.init.normal_(norm.weight)
    x = torch.randn(3, 2, width)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (width,), norm.weight, eps), rtol=1e-5, atol=1e-6)


def test_rms_norm_of_a_zero_row_is_zero_with_a_finite_gradient():
    norm, x = RMSNorm(4, 1e-5), torch.zeros(1, 4, requires_grad=True)
    out = norm(x)
    out.sum().backward()
    assert torch.equal(out, torch.zeros(1, 4)) and x.grad.isfinite().all()


def test_the_weight_multiplies_the_cast_value():
    norm, x = RMSNorm(8, 1e-5), torch.randn(5, 8, dtype=torch.bfloat16)
    nn.init.normal_(norm.weight)
    normed = F.rms_norm(x.float(), (8,), None, 1e-5).to(torch.bfloat16)
    assert torch.equal(norm(x), normed * norm.weight.to(torch.bfloat16))


@pytest.mark.parametrize("module", [RMSNorm(6, 1e-5), Linear(6, 3), Linear(6, 3, bias=True)])
def test_bf16_activations_keep_their_dtype_and_fp32_weights_get_fp32_gradients(module):
    x = torch.randn(4, 6, dtype=torch.bfloat16, requires_grad=True)
    out = module(x)
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert x.grad.dtype == torch.bfloat16
    for parameter in module.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32 and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_linear_casts_its_weights_to_the_input(dtype):
    linear, x = Linear(5, 3, bias=True), torch.randn(4, 5, dtype=dtype)
    nn.init.normal_(linear.bias)
    assert torch.equal(linear(x), F.linear(x, linear.weight.to(dtype), linear.bias.to(dtype)))


def test_linear_has_no_bias_by_default():
    assert Linear(2, 3).bias is None


def test_rms_norm_calls_the_op_that_it_bound():
    norm, calls = RMSNorm(4, 1e-5), []

    def fused(x, weight, eps):
        return x * 3

    class Recording(Ops):
        def bind(self, call):
            calls.append((call.op, dict(call.sizes), call.dtype))
            return fused

    bind_ops(norm, Recording().binder(torch.bfloat16, "cpu"))
    assert calls == [("rms_norm", {"width": 4}, torch.bfloat16)]
    assert torch.equal(norm(torch.ones(1, 4)), torch.full((1, 4), 3.0))
