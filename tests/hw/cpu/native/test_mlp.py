"""The dense feed-forward of many tokens: the values of its parts, in the dtype that multiplies faster."""

import pytest
import torch
import torch.nn.functional as F

from arcforge_core.ops import reference
from arcforge_hw.cpu import native
from arcforge_hw.cpu.native.mlp import mlp

MANY = native.FEW_ROWS + 1


def inputs(tokens, dtype, hidden=64, width=96):
    draw = torch.Generator().manual_seed(tokens)
    shapes = (tokens, hidden), (width, hidden), (width, hidden), (hidden, width)
    return [torch.randn(shape, generator=draw).mul(0.3).to(dtype) for shape in shapes]


@pytest.mark.parametrize("tokens", [MANY, 3 * MANY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_tokens_have_the_values_of_the_parts(tokens, dtype):
    given = inputs(tokens, dtype)
    torch.testing.assert_close(mlp(*given), reference.mlp(*given))


@pytest.mark.parametrize("rows", [0, 1e9], ids=["widened", "bfloat16"])
def test_bfloat16_is_rounded_where_the_parts_round(rows, monkeypatch):
    """But for few values near a border between two roundings, since the exponential is another one."""
    monkeypatch.setenv("ARCFORGE_CALIBRATION", f"fp32_rows={rows:g}")
    x_TD, gate_FD, up_FD, down_DF = given = inputs(MANY, torch.bfloat16, hidden=96)
    products = torch.eye(96, dtype=torch.bfloat16)  # a projection that only shows what the gate gives
    got_TF = mlp(x_TD, gate_FD, up_FD, products)

    def product(x, weight_NK):
        return F.linear(x.float(), weight_NK.float()).bfloat16() if rows == 0 else F.linear(x, weight_NK)

    wanted_TF = F.silu(product(x_TD, gate_FD)) * product(x_TD, up_FD)
    assert (got_TF == wanted_TF).float().mean() > 0.99
    torch.testing.assert_close(got_TF, wanted_TF, rtol=2**-7, atol=1e-30)
    torch.testing.assert_close(mlp(*given), product(wanted_TF, down_DF), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("rows", [0, 1e9], ids=["widened", "bfloat16"])
def test_large_values_and_those_that_are_no_numbers_pass_the_gate(rows, monkeypatch):
    monkeypatch.setenv("ARCFORGE_CALIBRATION", f"fp32_rows={rows:g}")
    x_TD = torch.zeros(MANY, 96, dtype=torch.bfloat16)
    x_TD[:5, 0] = torch.tensor([3e38, -3e38, float("inf"), float("nan"), 200.0])
    same = torch.eye(96, dtype=torch.bfloat16)
    found = mlp(x_TD, same, same, same)[:, 0]
    wanted = F.silu(x_TD[:, 0]) * x_TD[:, 0]
    torch.testing.assert_close(found[[0, 1, 4, 5]], wanted[[0, 1, 4, 5]], equal_nan=True)
    assert not found[2:4].isfinite().any()


@pytest.mark.parametrize("learns", [(0, 1, 2, 3), (1, 2, 3), (3,)])
def test_many_tokens_are_differentiated_by_the_parts(learns):
    given, same = inputs(MANY, torch.float32), inputs(MANY, torch.float32)
    for n in learns:
        given[n].requires_grad_()
        same[n].requires_grad_()
    mlp(*given).square().sum().backward()
    reference.mlp(*same).square().sum().backward()
    for n in learns:
        torch.testing.assert_close(given[n].grad, same[n].grad)


def test_many_tokens_under_autocast_are_computed_by_the_parts():
    given = inputs(MANY, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mlp(*given), reference.mlp(*given))
