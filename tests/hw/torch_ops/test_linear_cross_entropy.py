"""Chunked cross-entropy, its rows in torch and in C++: gradients, chunks, weights of zero, and no full logits."""

import pytest
import torch

import arcforge_hw.cpu.native.linear_cross_entropy as native
import arcforge_hw.torch_ops.linear_cross_entropy as chunks
from arcforge_core.ops import reference


@pytest.fixture(params=[chunks, native], ids=["torch", "native"])
def kernel(request):
    return request.param


def make(tokens=11, width=6, vocab=13, dtype=torch.float64, grad=True):
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)
    weight = torch.randn(vocab, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)
    target = torch.randint(vocab, (tokens,), generator=generator)
    return x, weight, target, torch.randint(3, (tokens,), generator=generator).float()


def assert_equal_to_reference(kernel, args, tolerance):
    losses = [fn(*args) for fn in (kernel.linear_cross_entropy, reference.linear_cross_entropy)]
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    grads = [torch.autograd.grad(loss * 0.37, args[:2]) for loss in losses]
    for got, wanted in zip(*grads, strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 4)


def test_gradcheck(kernel, small_chunks):
    x, weight, *rest = make()
    assert torch.autograd.gradcheck(lambda a, b: kernel.linear_cross_entropy(a, b, *rest), (x, weight))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(kernel, grad):
    package = torch.ops.arcforge_torch if kernel is chunks else torch.ops.arcforge_native
    torch.library.opcheck(package.linear_cross_entropy.default, (*make(grad=grad), grad))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 5e-2)]
)
@pytest.mark.parametrize("tokens", [1, 4, 30])
def test_equals_the_reference(kernel, small_chunks, tokens, dtype, tolerance):
    assert_equal_to_reference(kernel, make(tokens, dtype=dtype), tolerance)


def test_tokens_of_weight_zero_are_skipped(kernel):
    x, weight, target, weight_T = make(grad=False)
    poisoned = torch.where(weight_T[:, None] == 0, torch.nan, x).requires_grad_()
    loss = kernel.linear_cross_entropy(poisoned, weight, target, weight_T)
    torch.testing.assert_close(loss, reference.linear_cross_entropy(x, weight, target, weight_T))
    loss.backward()
    assert not poisoned.grad[weight_T == 0].any() and poisoned.grad.isfinite().all()


def test_all_weights_zero_give_a_zero_loss(kernel):
    x, weight, target, _ = make()
    loss = kernel.linear_cross_entropy(x, weight, target, torch.zeros(11))
    loss.backward()
    assert loss.item() == 0.0 and not x.grad.any() and not weight.grad.any()


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 32), (torch.bfloat16, 64)])
def test_full_logits_never_exist(kernel, monkeypatch, dtype, rows):
    """As many bytes of them in both precisions."""
    monkeypatch.setattr(chunks, "CHUNK", 32)
    x, weight, target, _ = make(128, 2, 512, dtype)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    with Watch():
        args = (x.detach(), weight.detach(), target, torch.ones(128), True)
        chunks.chunked(*args, chunks.chunk_of(x), kernel.row_losses)
    assert largest == rows * 512


@pytest.mark.parametrize("counted", [1, 31, 32, 40])
def test_bfloat16_rows_fill_whole_blocks(kernel, monkeypatch, counted):
    """Few different row counts occur; padding does not change results."""
    seen = []
    monkeypatch.setattr(
        chunks.torch, "mm", lambda *args, mm=torch.mm, **rest: (seen.append(len(args[0])), mm(*args, **rest))[1]
    )
    x, weight, target, _ = make(40, 2, 512, torch.bfloat16)
    weight_T = (torch.arange(40) < counted).float()
    target[counted:] = -100
    loss, *grads = chunks.chunked(x.detach(), weight.detach(), target, weight_T, True, 64, kernel.row_losses)
    assert {n for n in seen if n != 512} == {32 if counted <= 32 else 64}
    wide = [value.detach().double().requires_grad_() for value in (x, weight)]
    exact = reference.linear_cross_entropy(*wide, target.clamp(min=0), weight_T.double())
    torch.testing.assert_close(loss.double(), exact, rtol=1e-2, atol=1e-2)
    for got, wanted in zip(grads, torch.autograd.grad(exact, wide), strict=True):
        assert (got - wanted).abs().max() <= 2e-2 * wanted.abs().max()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float64, 1e-14)]
)
@pytest.mark.parametrize("width", [1, 63, 64, 1000])
def test_rows_in_cpp_equal_those_of_torch(dtype, tolerance, width):
    draw = torch.Generator().manual_seed(width)
    logits = (30 * torch.randn(5, width, generator=draw, dtype=torch.float64)).to(dtype)
    logits[1] = -1e30  # all alike, far from zero
    target = torch.randint(width, (5, 1), generator=draw)
    for got, wanted in zip(*(m.row_losses(logits.clone(), target, True) for m in (native, chunks)), strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def test_rows_in_cpp_do_not_depend_on_threads_and_keep_nan_to_themselves(monkeypatch):
    logits, target = torch.randn(7, 300, generator=torch.Generator().manual_seed(0)), torch.arange(7)[:, None]
    logits[3, 5] = torch.nan
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(native.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(native.row_losses(logits.clone(), target, True))
    losses, totals, _ = found[0]
    assert losses[3].isnan() and totals[3].isnan()
    for one, two, five in zip(*found, strict=True):
        assert not one[[0, 1, 2, 4, 5, 6]].isnan().any()
        for other in (two, five):
            torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", [-1, 13])
def test_a_target_outside_the_vocabulary_is_refused(kernel, target):
    x, weight, targets, weight_T = make(grad=False)
    targets[weight_T > 0] = target
    with pytest.raises((IndexError, RuntimeError), match=r"13|index"):
        kernel.linear_cross_entropy(x, weight, targets, weight_T)
