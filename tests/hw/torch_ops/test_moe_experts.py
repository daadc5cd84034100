"""Grouped experts: the mathematics in float64 with a plain product, the real product in fp32 and bf16."""

import itertools

import pytest
import torch

import arcforge_hw.torch_ops.moe_experts as kernel
from arcforge_core.ops import reference


def make(tokens=9, experts=5, chosen=2, hidden=8, width=16, dtype=torch.float32, grad=True):
    generator = torch.Generator().manual_seed(tokens)

    def draw(*size):
        return torch.randn(size, generator=generator, dtype=torch.float64)

    expert_TK = draw(tokens, experts).argsort(-1)[:, :chosen]
    floats = [draw(tokens, hidden), draw(experts, 2 * width, hidden) / 3, draw(experts, hidden, width) / 4]
    x, gate_up, down = (value.to(dtype).requires_grad_(grad) for value in floats)
    wide = torch.promote_types(dtype, torch.float32)
    gate_TK = draw(tokens, chosen).sigmoid().to(wide).requires_grad_(grad)
    return [x, gate_up, down, expert_TK, gate_TK]


def results(fn, args):
    out = fn(*args)
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return out.detach(), *torch.autograd.grad(out, [args[i] for i in (0, 1, 2, 4)], cotangent)


def assert_equal_to_reference(args, tolerance):
    for got, wanted in zip(results(kernel.moe_experts, args), results(reference.moe_experts, args), strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * max(1.0, float(wanted.abs().max())))


def plain_grouped_mm(a, b, offsets_E):
    """What `F.grouped_mm` does, in any dtype."""
    ends = [0, *offsets_E.tolist()]
    rows = list(itertools.pairwise(ends))
    if b.ndim == 2:
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in rows])
    return torch.cat([a[i:j] @ b[e] for e, (i, j) in enumerate(rows)])


def test_gradcheck(monkeypatch):
    monkeypatch.setattr(kernel, "grouped_mm", plain_grouped_mm)
    x, gate_up, down, expert_TK, gate = make(4, 3, 2, 3, 2, torch.float64)
    assert torch.autograd.gradcheck(
        lambda a, b, c, d: kernel.moe_experts(a, b, c, expert_TK, d), (x, gate_up, down, gate)
    )


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad):
    torch.library.opcheck(torch.ops.arcforge_torch.moe_experts.default, make(grad=grad))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_equals_the_reference_with_empty_experts(tokens, dtype, tolerance):
    assert_equal_to_reference(make(tokens, experts=7, dtype=dtype), tolerance)


def test_experts_without_tokens_get_zero_gradients():
    args = make(3, experts=6)
    args[3] = torch.tensor([[1, 4]] * 3)
    kernel.moe_experts(*args).sum().backward()  # a gradient with stride 0
    used = {e for e in range(6) if args[1].grad[e].any() and args[2].grad[e].any()}
    assert used == {1, 4}


def test_strided_inputs():
    x, gate_up, down, expert_TK, gate = make()
    args = [torch.stack([x, x], -1)[..., 0], gate_up.mT.contiguous().mT, down, expert_TK, gate]
    torch.testing.assert_close(kernel.moe_experts(*args), reference.moe_experts(*args), rtol=1e-5, atol=1e-5)


def test_bfloat16_rows_fill_whole_blocks():
    """So that few numbers of rows come again and again; which ones is unseen in the results."""
    args = make(70, experts=6, dtype=torch.bfloat16, grad=False)
    args[3] = torch.arange(140).view(70, 2) % 5  # nobody chooses the last
    order_R, ends_E = kernel._forward._init_fn(*args)[2:]
    counts_E = torch.bincount(args[3].flatten(), minlength=6)
    assert ends_E.tolist() == (-(-counts_E // kernel.BLOCK) * kernel.BLOCK).cumsum(0).tolist()
    assert order_R[order_R >= 0].sort().values.tolist() == list(range(140))
    for expert, (first, end) in enumerate(itertools.pairwise([0, *ends_E.tolist()])):
        rows = order_R[first:end]
        assert (args[3].flatten()[rows[rows >= 0]] == expert).all()
    assert kernel._forward._init_fn(args[0].float(), *(x.float() for x in args[1:3]), *args[3:])[3][-1] == 140


@pytest.mark.parametrize(("shift", "found"), [(1, "1 to 3"), (-1, "-1 to 1")])
def test_expert_numbers_out_of_range_are_refused(shift, found):
    args = make(experts=3)
    args[3] = args[3] + shift
    with pytest.raises(ValueError, match=f"expert ids must be from 0 to 2, got {found}"):
        kernel.moe_experts(*args)
