"""The checks find each way in which a kernel can be wrong."""

import itertools

import pytest
import torch

from arcforge_core.contracts.hardware import YES, Kernel, Verdict
from arcforge_core.ops import reference
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.hardware_checks import check_hardware, check_kernel

TURNS = itertools.count()


def kernel(op, fn, supports=lambda call: YES, **options):
    return Kernel(op, "test", fn, supports, **options)


def check(op, fn, dtype=torch.float32, **options):
    return check_kernel(kernel(op, fn, **options), "cpu", dtype)


@pytest.mark.parametrize("op", sorted(SPECS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_reference_passes_its_own_suite(op, dtype):
    result = check(op, SPECS[op].reference, dtype)
    assert (result.verdict, result.reason) == ("pass", "")


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return reference.swiglu(gate, up)

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        return grad * up * gate.sigmoid(), grad * gate * gate.sigmoid()


def changed_input(x, weight, eps):
    out = reference.rms_norm(x, weight, eps)
    x.detach().mul_(2)
    return out


def rows_of_the_storage(x, weight, eps):
    """Reads its input as if it were dense."""
    dense = x.as_strided(x.shape, torch.empty(x.shape).stride())
    return reference.rms_norm(dense, weight, eps)


def upper_left_causal(q, k, v, cu_query, cu_key, scale):
    """Takes the last queries for the first ones: right but for segments with a past."""
    keep = torch.cat([torch.arange(a, a + n) for a, n in zip(cu_key[:-1], cu_query.diff(), strict=True)])
    return reference.attention_varlen(q, k[keep], v[keep], cu_query, cu_query, scale)


def ties_to_the_higher_index(q, k, w, cu_query, cu_key, topk, use_relu=True, pages=None):
    flipped = torch.cat([k[a:b].flip(0) for a, b in itertools.pairwise(cu_key.tolist())])
    return reference.indexer_topk(q, flipped, w, cu_query, cu_key, topk, use_relu)


def noisy(gate, up):
    return reference.swiglu(gate, up) * (1 + 1e-6 * torch.rand(()))


@pytest.mark.parametrize(
    ("op", "fn", "reason"),
    [
        ("swiglu", WrongGradient.apply, "forward and gradients"),
        ("rms_norm", changed_input, "changed its input x"),
        ("rms_norm", rows_of_the_storage, "heads|rows"),
        ("attention_varlen", upper_left_causal, "with a past"),
        ("indexer_topk", ties_to_the_higher_index, "error"),
        ("swiglu", noisy, "differs"),
        ("swiglu", lambda gate, up: reference.swiglu(gate, up).double(), "output is"),
        ("swiglu", lambda gate, up: reference.swiglu(gate, up)[:1], "output is"),
        ("rope", lambda *args: 1 / 0, "ZeroDivisionError"),
        ("no_such_op", reference.swiglu, "core has no op"),
    ],
)
def test_a_wrong_kernel_fails_and_says_where(op, fn, reason):
    result = check(op, fn)
    assert result.verdict == "fail"
    assert result.op == op
    assert any(part in result.reason for part in reason.split("|")), result.reason


def test_a_kernel_that_declines_gives_its_reason():
    result = check("rope", reference.rope, supports=lambda call: Verdict(False, "no such unit"))
    assert (result.verdict, result.reason) == ("declined", "no such unit")


@pytest.mark.parametrize(
    ("supports", "reason"),
    [
        (lambda call: Verdict(False), "without a reason"),
        (lambda call: True, "not a Verdict"),
        (lambda call: Verdict(next(TURNS) % 2 == 0, "a whim"), "different verdicts"),
    ],
)
def test_a_bad_answer_of_supports_fails(supports, reason):
    result = check("rope", reference.rope, supports=supports)
    assert result.verdict == "fail"
    assert reason in result.reason


def test_a_promise_is_kept_and_the_op_s_tolerance_holds_without_one():
    result = check("rope", reference.rope, torch.bfloat16, tolerance={torch.float32: 1e-6})
    assert (result.verdict, result.tolerance) == ("pass", 2e-2)
    result = check("rope", reference.rope, torch.bfloat16, tolerance={torch.bfloat16: 1e-6})
    assert result.verdict == "fail" and "over tolerance 1e-06" in result.reason


def test_a_forward_only_kernel_is_checked_without_gradients():
    def forward_only(gate, up):
        return reference.swiglu(gate.detach(), up.detach())

    declines_grad = lambda call: Verdict(not call.needs_grad, "no backward pass")  # noqa: E731
    assert check("swiglu", forward_only, supports=declines_grad).verdict == "pass"
    assert check("swiglu", forward_only).verdict == "fail"


def test_all_kernels_and_dtypes_of_a_backend_are_checked():
    class Backend:
        identity, capabilities = TorchCpu.identity, TorchCpu.capabilities

        def kernels(self):
            return [
                kernel("rope", reference.rope),
                kernel("swiglu", reference.swiglu),
            ]

    rows = {(r.op, r.dtype): r.verdict for r in check_hardware(Backend())}
    assert rows == dict.fromkeys(
        itertools.product(("rope", "swiglu"), ("float32", "bfloat16", "float64")),
        "pass",
    )
    assert [r.op for r in check_hardware(Backend(), ["rope"])] == ["rope"] * 3


def at_a_models_sizes(call):
    return YES if call.sizes.get("key_dim", 576) == 576 and call.sizes.get("head_dim", 128) == 128 else NO


NO = Verdict(False, "only entries of 576 and index heads of 128")


@pytest.mark.parametrize("op", ["mla_decode", "sparse_mla", "indexer_kl", "indexer_topk"])
def test_a_kernel_for_one_model_s_sizes_is_checked_at_these(op):
    right, wrong = SPECS[op].reference, lambda *args: -SPECS[op].reference(*args)
    assert check(op, right, supports=at_a_models_sizes).verdict == "pass"
    found = check(op, wrong, supports=at_a_models_sizes)
    assert found.verdict == "fail" and found.reason.startswith("a model's sizes"), found
    assert check(op, right, supports=lambda call: NO).verdict == "declined"
