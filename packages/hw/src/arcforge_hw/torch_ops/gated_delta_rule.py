"""The gated delta rule in chunks (WY form): matrix products, and one step per chunk instead of one per token.

With γ the running sum of g in a chunk, D_ij = e^(γ_i - γ_j) for i >= j and 0 above, and S the state before the chunk:

    A = K K^T ∘ D below the diagonal,  P = Q K^T ∘ D,  [U | W] = (I + β A)^-1 [β V | β e^γ K],  N = U - W S
    out = e^γ Q S + P N,   S' = e^γ_C S + (e^(γ_C - γ) K)^T N

Only N and S' depend on the previous chunk; the rest is batched over chunks of all segments and heads. A chunk of one
token is the recurrent step. The backward pass keeps the states between chunks and recomputes the rest.

γ is summed in float64: after strong decays, differences of fp32 sums would lose the weak ones. Where a chip has no
float64, the decays between each two tokens are summed, so that nothing is subtracted.

Shapes: T tokens, N segments, H heads, K key size, V value size, C tokens of a chunk, B chunks times heads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from arcforge_core.ops.hardware import capabilities_of
from arcforge_hw.torch_ops import block_values

SIZES = (1, 4, 16, 32, 64)
"""Chunk sizes: segments use the smallest one that holds them, or several chunks of the largest."""
BLOCK = 1 << 18
"""Maximum number of values of one intermediate result, unless a single step has more; they should fit in the cache; see
`block_values`."""


@dataclass(frozen=True)
class Layout:
    """Segments split into chunks of one size: the first chunks of all segments, then their second ones, and so on.

    Attributes:
        size: C.
        segments_N: the segments, those with more chunks first.
        rows_T: their tokens' rows in the batch.
        place_TH: position of tokens and heads in [B * C], B running over chunks, then heads.
        steps: ranges of B, one per step in time; segments with further chunks come first.
    """

    size: int
    segments_N: Tensor
    rows_T: Tensor
    place_TH: Tensor
    steps: list[range]

    def gather(self, x_TH: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns [B, C, ...] in `dtype`, zeros after a segment's end."""
        x_XE = x_TH.index_select(0, self.rows_T).flatten(0, 1).to(dtype)
        out: Tensor = x_XE.new_zeros(self.steps[-1].stop * self.size, *x_XE.shape[1:])
        out = out.index_copy_(0, self.place_TH.flatten(), x_XE)
        return out.view(-1, self.size, *x_XE.shape[1:])

    def scatter(self, x_BC: Tensor, out_TH: Tensor) -> None:
        """Writes the tokens' values to their rows of `out_TH`."""
        x_XE = x_BC.flatten(0, 1).index_select(0, self.place_TH.flatten()).to(out_TH.dtype)
        out_TH.index_copy_(0, self.rows_T, x_XE.unflatten(0, self.place_TH.shape))

    def blocks(self, width: int) -> Iterator[list[range]]:
        """Yields runs of steps that are computed together, for values of `width` per token."""
        most = block_values(BLOCK, self.rows_T.device)
        run: list[range] = []
        for step in self.steps:
            if run and (step.stop - run[0].start) * self.size * width > most:
                yield run
                run = []
            run.append(step)
        yield run

    def going_on(self, index: int) -> range:
        """Returns the range of B after step `index`, empty after the last one."""
        end = self.steps[index].stop
        return self.steps[index + 1] if index + 1 < len(self.steps) else range(end, end)


@functools.lru_cache(maxsize=4)
def lay_chunks(cu_query: tuple[int, ...], heads: int, device: torch.device) -> list[Layout]:
    """Groups the segments by chunk size and splits them; all layers share the result.

    Reads lengths on the host; the result is on `device`.
    """
    cu = torch.tensor(cu_query)
    starts_N, lengths_N = cu[:-1], cu.diff()
    sizes = torch.tensor(SIZES)
    size_N = sizes[torch.searchsorted(sizes, lengths_N).clamp(max=len(SIZES) - 1)]
    return [
        _lay(torch.where(size_N == size)[0], starts_N, lengths_N, int(size), heads, device)
        for size in SIZES
        if bool((size_N == size).any())
    ]


def _lay(
    segments_N: Tensor, starts_N: Tensor, lengths_N: Tensor, size: int, heads: int, device: torch.device
) -> Layout:
    chunks_N = -(-lengths_N[segments_N] // size)
    order_N = chunks_N.argsort(descending=True, stable=True)
    segments_N, chunks_N = segments_N[order_N], chunks_N[order_N]
    lengths_N = lengths_N[segments_N]
    # number of segments with a j-th chunk, and index of the first j-th chunk
    count_J = torch.bincount(chunks_N - 1).flip(0).cumsum(0).flip(0)
    end_J = count_J.cumsum(0)
    rank_T = torch.repeat_interleave(torch.arange(len(segments_N)), lengths_N)
    offset_T = torch.arange(len(rank_T)) - (lengths_N.cumsum(0) - lengths_N)[rank_T]
    chunk_T = (end_J - count_J)[offset_T // size] + rank_T
    place_TH = (chunk_T[:, None] * heads + torch.arange(heads)) * size + (offset_T % size)[:, None]
    ends = [0, *(end_J * heads).tolist()]
    steps = [range(first, last) for first, last in pairwise(ends)]
    rows_T = starts_N[segments_N][rank_T] + offset_T
    return Layout(size, segments_N.to(device), rows_T.to(device), place_TH.to(device), steps)


@dataclass(frozen=True)
class Tokens:
    """The op's inputs in chunks, [B, C, ...]; queries are scaled."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    def __getitem__(self, block: slice) -> Tokens:
        return Tokens(*(getattr(self, field.name)[block] for field in fields(self)))


@dataclass(frozen=True)
class Inner:
    """The part of a chunk that does not depend on the state; names as in the module's docstring.

    Attributes:
        decay: D.
        since: e^γ [B, C, 1].
        until: e^(γ_C - γ) [B, C, 1].
    """

    decay: Tensor
    since: Tensor
    until: Tensor
    a: Tensor
    p: Tensor
    uw: Tensor

    @staticmethod
    def of(x: Tokens) -> Inner:
        between, gamma, rest = log_decays(x.g)
        above = torch.ones(x.g.shape[-1], x.g.shape[-1], dtype=torch.bool, device=x.g.device).triu(1)
        # masked before the exponential, which overflows above the diagonal
        decay = between.to(x.k.dtype).masked_fill_(above, -torch.inf).exp_()
        since = gamma.exp().to(x.k.dtype)[..., None]
        until = rest.exp().to(x.k.dtype)[..., None]
        a = torch.bmm(x.k, x.k.mT).mul_(decay).tril_(-1)
        p = torch.bmm(x.q, x.k.mT).mul_(decay)
        beta = x.beta[..., None]
        uw = solve(beta * a, torch.cat((beta * x.v, beta * since * x.k), -1))
        return Inner(decay, since, until, a, p, uw)

    def split(self, value_dim: int) -> tuple[Tensor, Tensor]:
        """Returns U and W."""
        return self.uw[..., :value_dim], self.uw[..., value_dim:]


def log_decays(g_BC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns log decays after each token until each later one [B, C, C], since the chunk's start, until its end."""
    if capabilities_of(g_BC.device.type).float64:
        gamma_BC = g_BC.double().cumsum(-1)
        return gamma_BC[..., :, None] - gamma_BC[..., None, :], gamma_BC, gamma_BC[..., -1:] - gamma_BC
    between_BCC = g_BC[..., :, None].expand(*g_BC.shape, g_BC.shape[-1]).tril(-1).cumsum(-2)
    return between_BCC, g_BC.cumsum(-1), between_BCC[..., -1, :].clone()


def solve(lower: Tensor, right: Tensor, transposed: bool = False) -> Tensor:
    """Returns ``(I + lower)^-1 right``, or with `lower` transposed; does not read its diagonal."""
    if lower.shape[-1] == 1:
        return right
    matrix = lower.mT if transposed else lower
    solved: Tensor = torch.linalg.solve_triangular(matrix, right, upper=transposed, unitriangular=True)
    return solved


def run_chunks(layout: Layout, x: Tokens, state_XKV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the outputs [B, C, V], the last states of the segments and the states before all chunks [B, K, V]."""
    states = x.k.new_empty(len(x.k), *state_XKV.shape[1:])
    states[: len(state_XKV)] = state_XKV
    last, out, index = torch.empty_like(state_XKV), torch.empty_like(x.v), 0
    for steps in layout.blocks(max(layout.size, *state_XKV.shape[1:])):
        first, end = steps[0].start, steps[-1].stop
        part = x[first:end]
        inner = Inner.of(part)
        u, w = inner.split(x.v.shape[-1])
        keys, new = inner.until * part.k, torch.empty_like(part.v)
        for step in steps:
            rows, state = slice(step.start - first, step.stop - first), states[step.start : step.stop]
            new[rows] = torch.baddbmm(u[rows], w[rows], state, alpha=-1)
            after = torch.baddbmm(inner.since[rows, -1:] * state, keys[rows].mT, new[rows])
            on = layout.going_on(index)
            states[on.start : on.stop] = after[: len(on)]
            last[len(on) : len(step)] = after[len(on) :]
            index += 1
        out[first:end] = torch.baddbmm(torch.bmm(inner.since * part.q, states[first:end]), inner.p, new)
    return out, last, states


def run_back(layout: Layout, x: Tokens, states: Tensor, grad_out: Tensor, grad_last: Tensor) -> tuple[Tokens, Tensor]:
    """Returns the gradients of the tokens and of the states before them."""
    grads = Tokens(*(torch.empty_like(getattr(x, field.name)) for field in fields(x)))
    later, index = torch.empty_like(grad_last[:0]), len(layout.steps)
    for steps in reversed(list(layout.blocks(max(layout.size, *states.shape[1:])))):
        first, end = steps[0].start, steps[-1].stop
        part, state, d_out = x[first:end], states[first:end], grad_out[first:end]
        inner = Inner.of(part)
        u, w = inner.split(x.v.shape[-1])
        new = torch.baddbmm(u, w, state, alpha=-1)
        keys = inner.until * part.k
        d_new = torch.bmm(inner.p.mT, d_out)
        d_state = torch.bmm((inner.since * part.q).mT, d_out)
        d_after = torch.empty_like(state)
        for step in reversed(steps):
            index -= 1
            rows = slice(step.start - first, step.stop - first)
            d_after[rows] = torch.cat((later, grad_last[len(later) : len(step)]))
            d_new[rows] = torch.baddbmm(d_new[rows], keys[rows], d_after[rows])
            d_state[rows] += inner.since[rows, -1:] * d_after[rows]
            d_state[rows] = torch.baddbmm(d_state[rows], w[rows].mT, d_new[rows], alpha=-1)
            later = d_state[rows]
        for field, value in zip(
            fields(grads), _inner_back(part, inner, state, new, d_out, d_new, d_after), strict=True
        ):
            getattr(grads, field.name)[first:end] = value
    return grads, later


def _inner_back(
    x: Tokens, inner: Inner, state: Tensor, new: Tensor, d_out: Tensor, d_new: Tensor, d_after: Tensor
) -> tuple[Tensor, ...]:
    """Returns the gradients of q, k, v, g and beta of some chunks, given those of N and of the states after them."""
    beta, value_dim = x.beta[..., None], x.v.shape[-1]
    d_uw = torch.cat((d_new, torch.bmm(d_new, state.mT).neg_()), -1)
    d_right = solve(beta * inner.a, d_uw, transposed=True)
    d_v, d_w = d_right[..., :value_dim], d_right[..., value_dim:]
    d_lower = torch.bmm(d_right, inner.uw.mT).neg_()  # of β A
    d_p = torch.bmm(d_out, new.mT)
    d_qs, d_ku = torch.bmm(d_out, state.mT), torch.bmm(new, d_after.mT)
    since_k = inner.since * x.k

    d_beta = ((d_v * x.v).sum(-1) + (d_w * since_k).sum(-1)).add_((d_lower * inner.a).sum(-1))
    both_a, both_p = d_lower * (beta * inner.a), d_p * inner.p  # gradient of γ_i, and minus that of γ_j
    d_gamma = both_a.add_(both_p)
    d_gamma = d_gamma.sum(-1) - d_gamma.sum(-2)
    d_gamma += (inner.since * d_qs * x.q).sum(-1) + (beta * d_w * since_k).sum(-1)
    until = (inner.until * d_ku * x.k).sum(-1)
    d_gamma -= until
    d_gamma[:, -1] += until.sum(-1) + inner.since[:, -1, 0] * (d_after * state).sum((-2, -1))

    d_kk = (d_lower * inner.decay).tril_(-1).mul_(beta)
    d_qk = d_p * inner.decay
    d_q = torch.baddbmm(inner.since * d_qs, d_qk, x.k)
    d_k = inner.since * (beta * d_w) + inner.until * d_ku
    d_k = torch.baddbmm(torch.baddbmm(d_k, d_kk + d_kk.mT, x.k), d_qk.mT, x.q)
    return d_q, d_k, beta * d_v, d_gamma.flip(-1).cumsum(-1).flip(-1), d_beta


def _wide(*given: Tensor) -> torch.dtype:
    return functools.reduce(torch.promote_types, (x.dtype for x in given), torch.float32)


def _tokens(layout: Layout, given: tuple[Tensor, ...], dtype: torch.dtype, scale: float) -> Tokens:
    x = Tokens(*(layout.gather(value, dtype) for value in given))
    x.q.mul_(scale)
    return x


def _own_states(layout: Layout, state_NHKV: Tensor, dtype: torch.dtype) -> Tensor:
    return state_NHKV.index_select(0, layout.segments_N).flatten(0, 1).to(dtype)


@torch.library.custom_op("arcforge_torch::gated_delta_rule", mutates_args=())
def _forward(
    q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_NHKV: Tensor, cu_query: Tensor,
    scale: float, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the output, the states after it and the kept states before all chunks, flattened."""
    given = (q_THK, k_THK, v_THV, g_TH, beta_TH)
    wide = _wide(*given, state_NHKV)
    out_THV = v_THV.new_empty(v_THV.shape)
    after_NHKV, kept = state_NHKV.new_empty(state_NHKV.shape), [out_THV.new_empty(0, dtype=wide)]
    for layout in lay_chunks(tuple(cu_query.tolist()), q_THK.shape[1], q_THK.device):
        x = _tokens(layout, given, wide, scale)
        out, last, states = run_chunks(layout, x, _own_states(layout, state_NHKV, wide))
        layout.scatter(out, out_THV)
        after_NHKV[layout.segments_N] = last.view(-1, *state_NHKV.shape[1:]).to(state_NHKV.dtype)
        if keep:
            kept.append(states.flatten())
    return out_THV, after_NHKV, torch.cat(kept)


@_forward.register_fake
def _(
    q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_NHKV: Tensor, cu_query: Tensor,
    scale: float, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    size = torch.library.get_ctx().new_dynamic_size() if keep else 0
    kept = v_THV.new_empty(size, dtype=_wide(q_THK, k_THK, v_THV, g_TH, beta_TH, state_NHKV))
    return v_THV.new_empty(v_THV.shape), state_NHKV.new_empty(state_NHKV.shape), kept


@torch.library.custom_op("arcforge_torch::gated_delta_rule_backward", mutates_args=())
def _backward(
    grad_THV: Tensor, grad_NHKV: Tensor, q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor,
    kept: Tensor, cu_query: Tensor, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of all tensors."""
    given = (q_THK, k_THK, v_THV, g_TH, beta_TH)
    grads = [x.new_empty(x.shape) for x in given]
    grad_before_NHKV, offset = grad_NHKV.new_empty(grad_NHKV.shape), 0
    for layout in lay_chunks(tuple(cu_query.tolist()), q_THK.shape[1], q_THK.device):
        x = _tokens(layout, given, kept.dtype, scale)
        shape = (len(x.k), *grad_NHKV.shape[2:])
        states = kept[offset : offset + shape[0] * shape[1] * shape[2]].view(shape)
        offset += states.numel()
        d_out, d_last = layout.gather(grad_THV, kept.dtype), _own_states(layout, grad_NHKV, kept.dtype)
        d_tokens, d_before = run_back(layout, x, states, d_out, d_last)
        d_tokens.q.mul_(scale)
        for field, grad in zip(fields(d_tokens), grads, strict=True):
            layout.scatter(getattr(d_tokens, field.name), grad)
        grad_before_NHKV[layout.segments_N] = d_before.view(-1, *grad_NHKV.shape[1:]).to(grad_NHKV.dtype)
    grad_q, grad_k, grad_v, grad_g, grad_beta = grads
    return grad_q, grad_k, grad_v, grad_g, grad_beta, grad_before_NHKV


@_backward.register_fake
def _(
    grad_THV: Tensor, grad_NHKV: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v, grad_g, grad_beta, grad_state = (
        x.new_empty(x.shape) for x in (q, k, v, g, beta, grad_NHKV)
    )
    return grad_q, grad_k, grad_v, grad_g, grad_beta, grad_state


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *given, state_NHKV, cu_query, ctx.scale, _ = inputs
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # avoids zeros as large as the kept states
    ctx.state_shape, ctx.state_dtype = state_NHKV.shape, state_NHKV.dtype
    ctx.save_for_backward(*given, output[2], cu_query)


def _gradients(ctx: Any, grad_THV: Tensor | None, grad_NHKV: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad_THV is None and grad_NHKV is None:
        return (None,) * 9
    saved = ctx.saved_tensors  # may only be read once
    v_THV = saved[2]
    if grad_THV is None:
        grad_THV = torch.zeros_like(v_THV)
    if grad_NHKV is None:
        grad_NHKV = v_THV.new_zeros(ctx.state_shape, dtype=ctx.state_dtype)
    grads = _backward(grad_THV, grad_NHKV, *saved, ctx.scale)
    return (*grads, None, None, None)


_forward.register_autograd(_gradients, setup_context=_setup)


def gated_delta_rule(
    q_THK: Tensor, k_THK: Tensor, v_THV: Tensor, g_TH: Tensor, beta_TH: Tensor, state_NHKV: Tensor, cu_query: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """See `arcforge_core.ops.reference.gated_delta_rule`."""
    given = (q_THK, k_THK, v_THV, g_TH, beta_TH, state_NHKV)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    out_THV, after_NHKV, _ = _forward(*given, cu_query, scale, keep)
    return out_THV, after_NHKV
