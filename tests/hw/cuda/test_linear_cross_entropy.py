"""Rows of logits in Triton between products of chunks: gradients, columns left over, strided inputs, zero weights."""

import pytest
import torch

import arcforge_hw.cuda.linear_cross_entropy as kernel
from arcforge_core.ops import reference
from arcforge_hw.torch_ops.linear_cross_entropy import row_losses as plain_rows


def make(device, tokens=11, width=6, vocab=13):
    draw = torch.Generator().manual_seed(tokens)
    x, weight = (torch.randn(n, 2 * width, generator=draw).to(device)[:, :width] for n in (tokens, vocab))
    target, weight_T = torch.randint(vocab, (tokens,), generator=draw), torch.randint(3, (tokens,), generator=draw)
    return x.requires_grad_(), weight.requires_grad_(), target.to(device), weight_T.to(device, torch.float32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(kernel, "CHUNK", 4)
    monkeypatch.setattr(kernel, "tuned", lambda _: {"BLOCK_W": 32})


@pytest.mark.parametrize("vocab", [1, 32, 50])
@pytest.mark.parametrize("tokens", [1, 4, 6])
def test_equals_the_reference(tokens, vocab, device):
    args = make(device, tokens, vocab=vocab)
    results = []
    for fn in (kernel.linear_cross_entropy, reference.linear_cross_entropy):
        loss = fn(*args)
        results.append((loss.detach(), *torch.autograd.grad(0.37 * loss, args[:2])))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_row_becomes_its_gradient_in_place(scale, device):
    """Large logits too: the largest of them is found block by block."""
    logits_BW = scale * torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(device)
    logits_BW[0] = logits_BW[0].sort().values
    target_B1 = torch.tensor([[0], [39], [17]], device=device)
    wanted = plain_rows(logits_BW.clone(), target_B1, True)
    kept = logits_BW.clone()
    for value, plain in zip(kernel.row_losses(kept, target_B1, False)[:2], wanted, strict=False):
        torch.testing.assert_close(value, plain)
    assert torch.equal(kept, logits_BW)
    got = kernel.row_losses(logits_BW, target_B1, True)
    for value, plain in zip(got, wanted, strict=True):
        torch.testing.assert_close(value, plain)
    assert got[2] is logits_BW


def test_tokens_of_weight_zero_are_skipped(device):
    x, weight, target, weight_T = make(device)
    poisoned = torch.where(weight_T[:, None] == 0, torch.nan, x.detach()).requires_grad_()
    loss = kernel.linear_cross_entropy(poisoned, weight, target, weight_T)
    torch.testing.assert_close(loss, reference.linear_cross_entropy(x, weight, target, weight_T))
    loss.backward()
    assert not poisoned.grad[weight_T == 0].any() and poisoned.grad.isfinite().all()


def test_all_weights_zero_give_a_zero_loss(device):
    x, weight, target, weight_T = make(device)
    loss = kernel.linear_cross_entropy(x, weight, target, 0 * weight_T)
    loss.backward()
    assert loss.item() == 0.0 and not x.grad.any() and not weight.grad.any()


@pytest.mark.slow(reason="opcheck runs the interpreted kernel many times")
def test_opcheck(device):
    torch.library.opcheck(torch.ops.arcforge_cuda.linear_cross_entropy.default, (*make(device, tokens=3), True))
