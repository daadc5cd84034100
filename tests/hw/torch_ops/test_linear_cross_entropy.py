"""Chunked cross-entropy: gradients, chunks, weights of zero, and no full logits."""

import pytest
import torch

import arcforge_hw.torch_ops.linear_cross_entropy as kernel
from arcforge_core.ops import reference


def make(tokens=11, width=6, vocab=13, dtype=torch.float64, grad=True):
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)
    weight = torch.randn(vocab, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)
    target = torch.randint(vocab, (tokens,), generator=generator)
    return x, weight, target, torch.randint(3, (tokens,), generator=generator).float()


def assert_equal_to_reference(args, tolerance):
    losses = [fn(*args) for fn in (kernel.linear_cross_entropy, reference.linear_cross_entropy)]
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    grads = [torch.autograd.grad(loss * 0.37, args[:2]) for loss in losses]
    for got, wanted in zip(*grads, strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(kernel, "CHUNK", 4)


def test_gradcheck(small_chunks):
    x, weight, *rest = make()
    assert torch.autograd.gradcheck(lambda a, b: kernel.linear_cross_entropy(a, b, *rest), (x, weight))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad):
    torch.library.opcheck(torch.ops.arcforge_torch.linear_cross_entropy.default, (*make(grad=grad), grad))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 5e-2)]
)
@pytest.mark.parametrize("tokens", [1, 4, 30])
def test_equals_the_reference(small_chunks, tokens, dtype, tolerance):
    assert_equal_to_reference(make(tokens, dtype=dtype), tolerance)


def test_tokens_of_weight_zero_are_skipped():
    x, weight, target, weight_T = make(grad=False)
    poisoned = torch.where(weight_T[:, None] == 0, torch.nan, x).requires_grad_()
    loss = kernel.linear_cross_entropy(poisoned, weight, target, weight_T)
    torch.testing.assert_close(loss, reference.linear_cross_entropy(x, weight, target, weight_T))
    loss.backward()
    assert not poisoned.grad[weight_T == 0].any() and poisoned.grad.isfinite().all()


def test_all_weights_zero_give_a_zero_loss():
    x, weight, target, _ = make()
    loss = kernel.linear_cross_entropy(x, weight, target, torch.zeros(11))
    loss.backward()
    assert loss.item() == 0.0 and not x.grad.any() and not weight.grad.any()


def test_full_logits_never_exist(small_chunks):
    x, weight, target, _ = make(64, 2, 512, torch.float32)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    with Watch():
        kernel._forward._init_fn(x.detach(), weight.detach(), target, torch.ones(64), True)
    assert 0 < largest <= 4 * 512
