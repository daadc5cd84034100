"""Kernels that lie: each is right on small calls, or on most, and the kit names the op and the kind of the fault."""

import dataclasses
import itertools
import re

import pytest
import torch

from arcforge_core.contracts.hardware import YES, Kernel, Verdict
from arcforge_core.ops import reference
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.hardware_checks import check_kernel


def zeros(x, weight, eps):
    return torch.zeros_like(x)


def selects_nothing(q, k, w, cu_query, cu_key, topk, use_relu=True, pages=None):
    return torch.full((len(q), topk), -1)


def cached_by_shape():
    cache = {}

    def lie(x, weight, eps):
        return cache.setdefault((x.shape, x.dtype), reference.rms_norm(x, weight, eps)).clone()

    return lie


def overwritten():
    buffers = {}

    def lie(gate, up):
        out = reference.swiglu(gate, up)
        if torch.is_grad_enabled():
            return out
        return buffers.setdefault((out.shape, out.dtype), torch.empty_like(out)).copy_(out)

    return lie


def wrong_once_in_53():
    calls = itertools.count(1)
    return lambda gate, up: reference.swiglu(gate, up) * (0.5 if next(calls) % 53 == 0 else 1.0)


def zeros_from_4096_rows(x, weight, eps):
    out = reference.rms_norm(x, weight, eps)
    return torch.cat([out[:4096], torch.zeros_like(out[4096:])])


def wrong_scale_beyond_300_keys(q, k, v, cu_query, cu_key, scale):
    return reference.attention_varlen(q, k, v, cu_query, cu_key, scale * (1.5 if int(cu_key.diff().max()) > 300 else 1))


def int16_indices(q, kv, indices, cu_query, cu_key, latent_dim, scale, pages=None):
    cut = torch.where(indices < 0, indices, indices % 2**15)
    return reference.sparse_mla(q, kv, cut, cu_query, cu_key, latent_dim, scale, pages)


def drops_tokens_above_64(x, gate_up, down, expert_TK, gate_TK):
    place = torch.zeros_like(expert_TK)
    for expert in range(len(gate_up)):
        chosen = expert_TK == expert
        place[chosen] = torch.arange(int(chosen.sum()))
    return reference.moe_experts(x, gate_up, down, expert_TK, torch.where(place < 64, gate_TK, 0.0))


def never_rounds(x, weight, scale_NG, bias_N=None, rounds=True):
    return reference.quant_linear(x, weight, scale_NG, bias_N, False)


def never_rounds_inside(x, gate, gate_scale, up, up_scale, down, down_scale, rounds=True):
    return reference.quant_mlp(x, gate, gate_scale, up, up_scale, down, down_scale, False)


def sums_in_bf16(x, weight, bias=None):
    return reference.linear(x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16()).to(x.dtype)


def detached(gate, up):
    return reference.swiglu(gate.detach(), up)


def in_place(x, weight, eps):
    out = reference.rms_norm(x, weight, eps)
    x.detach().add_(1)
    return out


def shares_memory(x):
    return reference.hadamard(x) if x.shape[-1] > 1 else x


def reads_the_gap(x, weight, eps):
    return reference.rms_norm(x.as_strided(x.shape, torch.empty(x.shape).stride()), weight, eps)


def higher_index_wins(q, k, w, cu_query, cu_key, topk, use_relu=True, pages=None):
    return reference.indexer_topk(
        q, k + 1e-3 * torch.arange(len(k))[:, None], w, cu_query, cu_key, topk, use_relu, pages
    )


def one_rounding_off(x):
    records = reference.to_records(x)
    records[0, ..., 0] += 1
    return records


def wide_output(x, weight, eps):
    return reference.rms_norm(x, weight, eps).double()


def near_temperature(logits, temperature, seed, place):
    return reference.sample(logits, temperature * 1.5, seed, place)


def no_last_segment(q, k, v, cu_query, cu_key, scale):
    out = reference.attention_varlen(q, k, v, cu_query, cu_key, scale)
    return torch.cat([out[:-1], torch.zeros_like(out[-1:])])


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.01


def wrong_gradient(gate, up):
    return WrongGradient.apply(reference.swiglu(gate, up))


def half_rotation(x_THR, cos_TF, sin_TF):
    one, two = x_THR.chunk(2, -1)
    cos, sin = cos_TF[:, None], sin_TF[:, None]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x_THR.dtype)


def other_expert(x, gate_up, down, expert_TK, gate_TK):
    return reference.moe_experts(x, gate_up, down, (expert_TK + 1) % len(gate_up), gate_TK)


def gates_of_one(x, gate_up, down, expert_TK, gate_TK):
    return reference.moe_experts(x, gate_up, down, expert_TK, torch.ones_like(gate_TK))


def weights_ignored(x, weight, target_T, weight_T):
    return reference.linear_cross_entropy(x, weight, target_T, torch.ones_like(weight_T))


def without_normaliser(logits):
    index, _ = reference.argmax_logprob(logits)
    return index, logits.max(-1).values.to(torch.float32)


def one_dimension_more(x):
    return reference.hadamard(x)[None]


def unscaled(x):
    return reference.hadamard(x) * x.shape[-1] ** 0.5


def sums_over_the_window(q, k, v, cu_query, cu_key, window, scale):
    return reference.window_attention(q, k, v, cu_query, cu_key, window + 1, scale)


def scores_in_bf16(x, weight):
    return reference.router_scores(x.bfloat16(), weight.bfloat16())


def latest_first(q, k, w, cu_query, cu_key, topk, use_relu=True, pages=None):
    return reference.indexer_topk(q, k, w, cu_query, cu_key, topk, use_relu, pages).flip(-1)


def noise(gate, up):
    return reference.swiglu(gate, up) * (1 + 1e-7 * torch.rand(()))


def contiguous_pages(q, kv, cu_query, cu_key, latent_dim, scale, pages=None):
    return reference.mla_decode(q, kv, cu_query, cu_key, latent_dim, scale, None)


def too_few_steps(x_BMN, coefficients, eps=1e-7):
    return reference.newton_schulz(x_BMN, coefficients[:-1], eps)


def state_of_the_past(q, k, v, g, beta, state, cu_query, scale):
    out, _ = reference.gated_delta_rule(q, k, v, g, beta, state, cu_query, scale)
    return out, state.clone().to(torch.promote_types(q.dtype, torch.float32))


def keeps_the_cache(*args):
    return reference.mla_layer(*args[:10], args[10].clone(), *args[11:])


def writes_another_row(*args):
    out, cache, slot = reference.mla_layer(*args), args[10], args[11]
    cache[(slot + 1) % len(cache)] = cache[slot]
    return out


def writes_after_attending(*args):
    cache, slot, written = args[10], args[11], args[10].clone()
    reference.mla_layer(*args[:10], written, *args[11:])
    project = (*args[:7], *args[8:10], args[15], args[16])
    _, q, _ = reference.mla_project(*project)
    out = reference.mla_decode(q, cache, args[12], args[13], len(args[5]), args[17], args[14])
    cache[slot] = written[slot]
    return reference.linear(reference.mla_epilog(out, args[6], args[7].shape[1] // args[16]), args[7])


LIES = {
    "zeros": ("rms_norm", zeros, "without a tolerance_reason", {"tolerance": {torch.float32: 1.0}}),
    "selects nothing": ("indexer_topk", selects_nothing, "tolerance_reason", {"tolerance": {torch.float32: 1.0}}),
    "selects nothing, exactly": ("indexer_topk", selects_nothing, "is that of the first|error 1.0e", {}),
    "cached by shape": ("rms_norm", cached_by_shape(), "is that of the first", {}),
    "overwritten": ("swiglu", overwritten(), "was changed by a later call", {}),
    "once in 53 calls": ("swiglu", wrong_once_in_53(), "differs from that of call 1|error|differs between", {}),
    "from 4,096 rows": ("rms_norm", zeros_from_4096_rows, "large", {}),
    "beyond 300 keys": ("attention_varlen", wrong_scale_beyond_300_keys, "large", {}),
    "int16": ("sparse_mla", int16_indices, "large", {}),
    "above 64 tokens": ("moe_experts", drops_tokens_above_64, "large", {}),
    "W8A8 without rounding": ("quant_linear", never_rounds, "between integers", {}),
    "W8A8 without rounding inside": ("quant_mlp", never_rounds_inside, "8 bits", {}),
    "bf16 sums": ("linear", sums_in_bf16, "error", {}),
    "detached": ("swiglu", detached, "gradients", {}),
    "in place": ("rms_norm", in_place, "changed its input x", {}),
    "aliasing": ("hadamard", shares_memory, "shares the memory of the input x", {}),
    "NaN in a gap": ("rms_norm", reads_the_gap, "error (inf|1.0e)", {}),
    "wrong tie": ("indexer_topk", higher_index_wins, "error", {}),
    "integer off by one": ("to_records", one_rounding_off, "error", {}),
    "wrong dtype": ("rms_norm", wide_output, "output is .* torch.float64", {}),
    "wrong temperature": ("sample", near_temperature, "error", {}),
    "wrong gradient": ("swiglu", wrong_gradient, "gradients.*error", {}),
    "halves for pairs": ("rope", half_rotation, "error", {}),
    "expert off by one": ("moe_experts", other_expert, "error", {}),
    "gates ignored": ("moe_experts", gates_of_one, "error", {}),
    "weights ignored": ("linear_cross_entropy", weights_ignored, "error", {}),
    "no normaliser": ("argmax_logprob", without_normaliser, "error", {}),
    "shape": ("hadamard", one_dimension_more, "output is", {}),
    "unscaled": ("hadamard", unscaled, "error", {}),
    "window off by one": ("window_attention", sums_over_the_window, "error", {}),
    "bf16 router": ("router_scores", scores_in_bf16, "error", {}),
    "unsorted": ("indexer_topk", latest_first, "error", {}),
    "noise": ("swiglu", noise, "differs", {}),
    "page table ignored": ("mla_decode", contiguous_pages, "in pages", {}),
    "cache not written": ("mla_layer", keeps_the_cache, "error", {}),
    "another row written": ("mla_layer", writes_another_row, "error", {}),
    "written too late": ("mla_layer", writes_after_attending, "error", {}),
    "step left out": ("newton_schulz", too_few_steps, "error", {}),
    "state not written": ("gated_delta_rule", state_of_the_past, "error|is that of|shares", {}),
    "last token": ("attention_varlen", no_last_segment, "error|is that of the first", {}),
}


SLOW = ("expert off by one", "gates ignored", "page table ignored", "window off by one")
"""Their ops have costly cases."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in SLOW else name for name in LIES]
)
def test_a_lie_is_caught(name):
    op, fn, reason, options = LIES[name]
    result = check_kernel(Kernel(op, "acme", fn, lambda call: YES, **options), "cpu", torch.float32)
    assert result.verdict == "fail" and result.op == op
    assert re.search(reason, result.reason), result.reason


def test_a_larger_tolerance_needs_a_reason_and_is_shown():
    kernel = Kernel("swiglu", "acme", reference.swiglu, lambda _: YES, tolerance={torch.float32: 1e-3})
    assert check_kernel(kernel, "cpu", torch.float32).verdict == "fail"
    kernel = dataclasses.replace(kernel, tolerance_reason="a table of sigmoids")
    result = check_kernel(kernel, "cpu", torch.float32)
    assert result.verdict == "pass" and "1e-03 instead of 2e-05: a table of sigmoids" in result.reason


@pytest.mark.parametrize(
    ("op", "dtype", "seed"),
    [("gated_delta_rule", torch.float32, 41), ("selected_attention", torch.bfloat16, 1005)],
    ids=["a true gradient of 1e-162", "small sums of large terms"],
)
def test_draws_that_the_reference_itself_computes_badly_are_no_faults(op, dtype, seed):
    kernel = Kernel(op, "acme", SPECS[op].reference, lambda _: YES)
    assert check_kernel(kernel, "cpu", dtype, seed).verdict == "pass"

    def worse(*args):
        out = SPECS[op].reference(*args)
        rest = out[1:] if isinstance(out, tuple) else ()
        first = (out[0] if rest else out) * 1.05
        return (first, *rest) if rest else first

    assert "over tolerance" in check_kernel(dataclasses.replace(kernel, fn=worse), "cpu", dtype, seed).reason


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_no_fault_is_found_on_the_references(seed):
    for op, spec in SPECS.items():
        result = check_kernel(Kernel(op, "acme", spec.reference, lambda _: YES), "cpu", torch.float32, seed)
        assert result.verdict == "pass", (op, result.reason)


def test_cases_beyond_a_kernel_s_limits_are_not_run_and_its_limits_give_reasons():
    def limits(x, weight, eps):
        return YES if len(x) < 4096 else Verdict(False, "the grid ends")

    kernel = Kernel("rms_norm", "acme", zeros_from_4096_rows, lambda _: YES, limits=limits)
    assert check_kernel(kernel, "cpu", torch.float32).verdict == "pass"
    nothing = dataclasses.replace(kernel, limits=lambda *_: Verdict(False, "never"))
    assert check_kernel(nothing, "cpu", torch.float32).reason.endswith(": never")
    unsaid = check_kernel(dataclasses.replace(kernel, limits=lambda *_: False), "cpu", torch.float32)
    assert unsaid.verdict == "fail" and "limits() returned False, not a Verdict with a reason" in unsaid.reason
    honest = dataclasses.replace(kernel, limits=None)
    assert check_kernel(honest, "cpu", torch.float32, tokens=4095).verdict == "pass"
