"""Naive references of all ops: differentiable, any dtype, any device. They define what an op means.

Shapes: T query tokens, S keys, H heads, G key/value heads (H a multiple of G), K key size, V value size, C latent plus
rope size of MLA's shared cache entry, N segments, I index heads, D hidden size, E experts, F twice the expert width,
W vocabulary.
Ragged tokens lie segment after segment; ``cu_query`` and ``cu_key`` are int32 cumulative lengths on the host.
Causal is bottom-right: query j of a segment of q queries and s keys sees its first ``s - q + j + 1`` keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.ops.hadamard import hadamard_matrix
from arcforge_core.ops.likeliest import likeliest
from arcforge_core.ops.quant import to_records, wide_rows
from arcforge_core.ops.quant_reference import quant_experts, quant_linear, quant_mlp, quant_moe
from arcforge_core.ops.race import race
from arcforge_core.ops.routing_reference import route, router_scores


def segments(cu_query: Tensor, cu_key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yields (query rows, key rows) of each segment."""
    starts_q, starts_k = cu_query.tolist(), cu_key.tolist()
    for n in range(len(starts_q) - 1):
        yield slice(starts_q[n], starts_q[n + 1]), slice(starts_k[n], starts_k[n + 1])


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Returns bool [queries, keys], True where the key is visible (bottom-right causal)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def laid_out(x_SD: Tensor, cu_key: Tensor, pages: Pages | None) -> Tensor:
    """Returns keys one after another, gathered where they lie in pages of a cache."""
    return x_SD if pages is None else x_SD[pages.key_rows(cu_key).to(x_SD.device)]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis: computed in fp32, cast, then scaled by the weight (spec 1.3)."""
    x_32 = x.float() if x.dtype != torch.float64 else x
    normed = x_32 * torch.rsqrt(x_32.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight.to(x.dtype)


def rope(x_THR: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """Rotates the pairs (0,1), (2,3), ... of the last axis; the result keeps the interleaved order (spec 1.3).

    Args:
        x_THR: [T, H, R], R even.
        cos_TF: [T, R/2] fp32 cosines; sin_TF likewise.
    """
    x_32 = x_THR.float() if x_THR.dtype != torch.float64 else x_THR
    even, odd = x_32[..., 0::2], x_32[..., 1::2]
    cos, sin = cos_TF[:, None], sin_TF[:, None]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x_THR.dtype)


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Returns ``x W^T (+ b)`` over x's last axis, all in one dtype."""
    return F.linear(x, weight_NK, bias_N)


def head_linear(x_THK: Tensor, weight_HNK: Tensor) -> Tensor:
    """Returns [T, H, N]: each head's rows times the head's own weight."""
    return torch.einsum("thk,hnk->thn", x_THK, weight_HNK)


def hadamard(x: Tensor) -> Tensor:
    """Multiplies the last axis by `hadamard_matrix`: spreads outliers, keeps lengths and dot products (QuaRot)."""
    rotated: Tensor = x @ hadamard_matrix(x.shape[-1], x)
    return rotated


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Returns ``silu(gate) * up``."""
    return F.silu(gate) * up


def attention_varlen(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float
) -> Tensor:
    """Causal attention inside each segment, softmax in fp32.

    Returns:
        [T, H, V] in q's dtype.
    """
    return window_attention(q_THK, k_SGK, v_SGV, cu_query, cu_key, len(k_SGK), scale)


def attention_decode(
    q_THK: Tensor,
    k_SGK: Tensor,
    v_SGV: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    scale: float,
    pages: Pages | None = None,
) -> Tensor:
    """`attention_varlen` of few tokens behind a cache.

    With `pages` keys and values are a cache's rows, in which those of the segments lie there.
    """
    k_SGK, v_SGV = (laid_out(x, cu_key, pages) for x in (k_SGK, v_SGV))
    return attention_varlen(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale)


def window_mask(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Returns `causal_mask` without the keys that are `window` or more places back."""
    return causal_mask(queries, keys, device).triu(keys - queries - window + 1)


def window_attention(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, window: int, scale: float
) -> Tensor:
    """As `attention_varlen`, of the last `window` visible keys of each query, its own included.

    A segment may bring all keys of its past or the ``window - 1`` last ones.
    """
    repeat = q_THK.shape[1] // k_SGK.shape[1]
    outs = []
    for rows_q, rows_k in segments(cu_query, cu_key):
        q, k, v = q_THK[rows_q], k_SGK[rows_k], v_SGV[rows_k]
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
        scores = torch.einsum("thk,shk->hts", q, k) * scale
        mask = window_mask(q.shape[0], k.shape[0], window, q.device)
        probs = _softmax(scores.masked_fill(~mask, float("-inf")))
        outs.append(torch.einsum("hts,shv->thv", probs.to(v.dtype), v))
    return torch.cat(outs)


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32))


def mla_decode(
    q_THC: Tensor,
    kv_SC: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    latent_dim: int,
    scale: float,
    pages: Pages | None = None,
) -> Tensor:
    """Absorbed MLA: all heads share one entry per token, whose first `latent_dim` values are also the value.

    With `pages` the entries are a cache's rows, in which the segments' keys lie there.

    Returns:
        [T, H, latent_dim]: attention-weighted latents, before the value up-projection (spec 1.3).
    """
    kv_SC = laid_out(kv_SC, cu_key, pages)
    return attention_varlen(q_THC, kv_SC[:, None], kv_SC[:, None, :latent_dim], cu_query, cu_key, scale)


def index_scores(q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, use_relu: bool = True) -> Tensor:
    """Returns lightning-indexer scores [T, S]: sum over index heads of w * ReLU(q . k) (spec 1.4), fp32 or wider."""
    wide = torch.promote_types(q_TID.dtype, torch.float32)
    dots = torch.einsum("tid,sd->tis", q_TID.to(wide), k_SD.to(wide))
    return torch.einsum("ti,tis->ts", w_TI.to(wide), dots.relu() if use_relu else dots)


def indexer_topk(
    q_TID: Tensor,
    k_SD: Tensor,
    w_TI: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    topk: int,
    use_relu: bool = True,
    pages: Pages | None = None,
) -> Tensor:
    """Selects the visible keys of highest index score; ties go to the lower index (exact zeros are common).

    With `pages` the keys are a cache's rows, in which the segments' keys lie there. Keys of int8 are records of
    `quant.to_records`.

    Returns:
        int64 [T, topk]: key numbers inside the token's segment, ascending, padded with -1. No gradient.
    """
    k_SD = wide_rows(laid_out(k_SD, cu_key, pages))
    selected = []
    with torch.no_grad():
        for rows_q, rows_k in segments(cu_query, cu_key):
            scores = index_scores(q_TID[rows_q], k_SD[rows_k], w_TI[rows_q], use_relu)
            visible = causal_mask(scores.shape[0], scores.shape[1], scores.device)
            selected.append(top_keys(scores, visible, topk))
    return torch.cat(selected)


def top_keys(scores_TS: Tensor, visible_TS: Tensor, topk: int) -> Tensor:
    """Returns int64 [T, topk]: the visible keys of highest score, ties by lower number, ascending, padded with -1."""
    keys = scores_TS.shape[1]
    scores_TS = scores_TS.masked_fill(~visible_TS, float("-inf"))
    order_TK = torch.sort(scores_TS, dim=-1, descending=True, stable=True).indices[:, :topk]
    order_TK = torch.where(visible_TS.gather(1, order_TK), order_TK, keys).sort(-1).values
    selected_TK = torch.where(order_TK == keys, -1, order_TK)
    return F.pad(selected_TK, (0, topk - selected_TK.shape[1]), value=-1)


def sparse_mla(
    q_THC: Tensor,
    kv_SC: Tensor,
    indices_TK: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    latent_dim: int,
    scale: float,
    pages: Pages | None = None,
) -> Tensor:
    """Absorbed MLA over selected keys only.

    Args:
        q_THC: absorbed queries.
        kv_SC: shared entries of all segments.
        indices_TK: key numbers inside the token's segment, each once, -1 for none; at least one per token.
        cu_query, cu_key: segments.
        latent_dim: leading values of an entry that are the value.
        scale: softmax scale, ``(nope + rope) ** -0.5``.
        pages: where the segments' keys lie, when the entries are a cache's rows.

    Returns:
        [T, H, latent_dim].
    """
    kv_SC = laid_out(kv_SC, cu_key, pages)
    outs = []
    for rows_q, rows_k in segments(cu_query, cu_key):
        q, kv, index = q_THC[rows_q], kv_SC[rows_k], indices_TK[rows_q]
        # not kv[index]: its backward adds repeated rows in whatever order the threads come
        entries_TKC = kv.index_select(0, index.clamp(min=0).flatten()).unflatten(0, index.shape)
        scores = torch.einsum("thc,tkc->thk", q, entries_TKC) * scale
        probs = _softmax(scores.masked_fill((index < 0)[:, None], float("-inf")))
        outs.append(torch.einsum("thk,tkc->thc", probs.to(kv.dtype), entries_TKC[..., :latent_dim]))
    return torch.cat(outs)


def kl(target_TS: Tensor, scores_TS: Tensor, visible_TS: Tensor) -> Tensor:
    """Returns each row's ``KL(target || softmax(scores))`` over what is visible; its gradient is softmax - target."""
    hidden = scores_TS.masked_fill(~visible_TS, float("-inf"))
    logs_TS = hidden.log_softmax(-1).masked_fill(~visible_TS, 0.0)  # 0 * -inf would be NaN
    return (torch.xlogy(target_TS, target_TS) - target_TS * logs_TS).sum(-1)


@torch.no_grad()
def mean_softmax(scores_THS: Tensor, visible_TS: Tensor) -> Tensor:
    """Returns the mean over heads of the attention weights [T, S], without gradient."""
    hidden = scores_THS.masked_fill(~visible_TS[:, None], float("-inf"))
    return hidden.softmax(-1, dtype=torch.promote_types(scores_THS.dtype, torch.float32)).mean(1)


def selected_mask(indices_TK: Tensor, keys: int) -> Tensor:
    """Returns bool [T, S], True where a query selected a key of its segment."""
    mask_TS = torch.zeros(len(indices_TK), keys + 1, dtype=torch.bool, device=indices_TK.device)
    return mask_TS.scatter_(1, torch.where(indices_TK < 0, keys, indices_TK), True)[:, :keys]


def selected_attention(
    q_THK: Tensor,
    k_SGK: Tensor,
    v_SGV: Tensor,
    indices_TK: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    scale: float,
) -> Tensor:
    """As `attention_varlen`, of the selected keys only; `indices_TK` as `indexer_topk` returns them.

    `sparse_mla` for keys and values that every head has its own of: the better one while there are few more keys than
    a query selects.
    """
    repeat = q_THK.shape[1] // k_SGK.shape[1]
    outs = []
    for rows_q, rows_k in segments(cu_query, cu_key):
        k, v = (x[rows_k].repeat_interleave(repeat, dim=1) for x in (k_SGK, v_SGV))
        mask_TS = selected_mask(indices_TK[rows_q], len(k))
        scores = torch.einsum("thk,shk->hts", q_THK[rows_q], k) * scale
        probs = _softmax(scores.masked_fill(~mask_TS, float("-inf")))
        outs.append(torch.einsum("hts,shv->thv", probs.to(v.dtype), v))
    return torch.cat(outs)


def indexer_kl(
    q_THC: Tensor,
    kv_SC: Tensor,
    q_TID: Tensor,
    k_SD: Tensor,
    w_TI: Tensor,
    indices_TK: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    scale: float,
    use_relu: bool = True,
) -> Tensor:
    """Compares index scores of selected keys with how the attention heads weigh the same keys (spec 3.4).

    Args:
        q_THC, kv_SC, scale: absorbed queries, entries and softmax scale of `sparse_mla`; they get no gradient.
        q_TID, k_SD, w_TI, use_relu: what `index_scores` takes.
        indices_TK: key numbers inside the token's segment, each once, -1 for none; at least one per token.
        cu_query, cu_key: segments.

    Returns:
        [T], fp32 or wider: ``KL(p || softmax(scores))``, where p is the mean over heads of the attention weights.
    """
    return torch.cat(
        [
            indexer_kl_of_rows(q_THC[q], kv_SC[k], q_TID[q], k_SD[k], w_TI[q], indices_TK[q], scale, use_relu)
            for q, k in segments(cu_query, cu_key)
        ]
    )


def indexer_kl_of_rows(
    q_THC: Tensor,
    kv_SC: Tensor,
    q_TID: Tensor,
    k_SD: Tensor,
    w_TI: Tensor,
    rows_TK: Tensor,
    scale: float,
    use_relu: bool,
) -> Tensor:
    """Returns `indexer_kl` of tokens whose selected keys are given by their rows, -1 for none."""
    there_TK, some_TK = rows_TK >= 0, rows_TK.clamp(min=0)
    kv_TKC, k_TKD = F.embedding(some_TK, kv_SC.detach()), F.embedding(some_TK, k_SD)
    target_TK = mean_softmax(torch.einsum("thc,tkc->thk", q_THC.detach(), kv_TKC) * scale, there_TK)
    dots_TIK = torch.einsum("tid,tkd->tik", q_TID.to(target_TK.dtype), k_TKD.to(target_TK.dtype))
    scores_TK = torch.einsum("ti,tik->tk", w_TI.to(target_TK.dtype), dots_TIK.relu() if use_relu else dots_TIK)
    return kl(target_TK, scores_TK, there_TK)


def gated_delta_rule(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    g_TH: Tensor,
    beta_TH: Tensor,
    state_NHKV: Tensor,
    cu_query: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Linear attention: each token decays a state, corrects what its key reads there, and reads it (spec 3.5).

    ``S <- e^g S; S <- S + k (beta (v - S^T k))^T; o = S^T q * scale``, in fp32 or wider. Keys longer than 1 may make
    the state grow without bound.

    Args:
        q_THK, k_THK, v_THV: queries, keys and values of all segments.
        g_TH: logarithms of the decays, at most 0.
        beta_TH: how far the state is corrected, in [0, 1].
        state_NHKV: each segment's state before its first token here, fp32 or wider.
        cu_query: segments.
        scale: of the output.

    Returns:
        ([T, H, V] in v's dtype, the states after each segment's last token in `state_NHKV`'s dtype).
    """
    given = (q_THK, k_THK, v_THV, g_TH.exp(), beta_TH, state_NHKV)
    wide = reduce(torch.promote_types, (x.dtype for x in given), torch.float32)
    *tokens, states_NHKV = (x.to(wide) for x in given)
    outs, states = [], []
    for (rows, _), state_HKV in zip(segments(cu_query, cu_query), states_NHKV, strict=True):
        for q_HK, k_HK, v_HV, decay_H, beta_H in zip(*(x_T[rows] for x_T in tokens), strict=True):
            state_HKV = decay_H[:, None, None] * state_HKV
            error_HV = v_HV - (k_HK[..., None] * state_HKV).sum(1)
            state_HKV = state_HKV + k_HK[..., None] * (beta_H[:, None] * error_HV)[:, None]
            outs.append((q_HK[..., None] * state_HKV).sum(1))
        states.append(state_HKV)
    return (torch.stack(outs) * scale).to(v_THV.dtype), torch.stack(states).to(state_NHKV.dtype)


def moe_experts(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
    """Sum over a token's chosen experts of gate * down(silu(gate_proj x) * up_proj x).

    Args:
        x_TD: tokens.
        gate_up_EFD: [E, 2f, D], gate rows first.
        down_EDF: [E, D, f].
        expert_TK: int64 chosen experts, distinct in a row.
        gate_TK: their gates, fp32.

    Returns:
        [T, D] in x's dtype.
    """
    out = torch.zeros_like(x_TD)
    for expert in range(gate_up_EFD.shape[0]):
        token, choice = torch.where(expert_TK == expert)
        gate, up = F.linear(x_TD[token], gate_up_EFD[expert]).chunk(2, dim=-1)
        y = F.linear(F.silu(gate) * up, down_EDF[expert])
        out = out.index_add(0, token, y * gate_TK[token, choice, None].to(y.dtype))
    return out


def linear_cross_entropy(x_TD: Tensor, weight_WD: Tensor, target_T: Tensor, weight_T: Tensor) -> Tensor:
    """Weighted sum over tokens of the negative log-likelihood of `target_T` under softmax(x W^T).

    Returns:
        fp32 scalar (float64 for float64 inputs). `weight_T` gets no gradient.
    """
    logits = F.linear(x_TD, weight_WD)
    logits = logits.float() if logits.dtype != torch.float64 else logits
    nll_T = F.cross_entropy(logits, target_T, reduction="none")
    return (nll_T * weight_T.detach().to(nll_T.dtype)).sum()


def newton_schulz(x_BMN: Tensor, coefficients: Sequence[tuple[float, float, float]], eps: float = 1e-7) -> Tensor:
    """Orthogonalises each matrix: one odd polynomial step ``aX + (bA + cA^2)X``, ``A = XX^T``, per triple.

    Each matrix is divided by its Frobenius norm (in fp32 or wider, at least `eps`); the shorter side is the Gram side.
    Runs in x's dtype. Zero matrices stay zero.
    """
    wide = torch.promote_types(x_BMN.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x_BMN, dim=(-2, -1), keepdim=True, dtype=wide).clamp(min=eps)
    x: Tensor = x_BMN / norm.to(x_BMN.dtype)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for a, b, c in coefficients:
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)  # the order of roundings is torch.optim.Muon's
    return x.mT if tall else x


# ---- fused: what surrounds attention while few tokens are decoded, without gradients -------------------------------


def mla_prolog(
    x_TD: Tensor,
    q_a_QD: Tensor,
    q_norm_Q: Tensor,
    kv_a_CD: Tensor,
    kv_norm_L: Tensor,
    cos_TF: Tensor,
    sin_TF: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The latents of MLA (spec 1.3), without the query's up-projection, which is a product of its own.

    Returns:
        The normalised query latent [T, Q]; entries [T, C], of which the first L are the key/value latent.
    """
    q_TQ = rms_norm(linear(x_TD, q_a_QD), q_norm_Q, eps)
    latent_TL, rope_TR = linear(x_TD, kv_a_CD).split((len(kv_norm_L), 2 * cos_TF.shape[1]), dim=-1)
    rope_TR = rope(rope_TR[:, None], cos_TF, sin_TF)[:, 0]
    return q_TQ, torch.cat((rms_norm(latent_TL, kv_norm_L, eps), rope_TR), dim=-1)


def mla_absorb(q_TJ: Tensor, kv_b_JL: Tensor, cos_TF: Tensor, sin_TF: Tensor, heads: int) -> Tensor:
    """Queries of MLA in absorbed form: the rope part is rotated, the others meet the latent behind the up-projection.

    Args:
        q_TJ: all heads' queries as they are projected, the nope part first.
        kv_b_JL: up-projection of keys and values, a head's keys first.
        cos_TF, sin_TF: tables.
        heads: how many.

    Returns:
        [T, H, C].
    """
    q_THK, rotary = q_TJ.unflatten(-1, (heads, -1)), 2 * cos_TF.shape[1]
    nope = q_THK.shape[-1] - rotary
    up_HNL = kv_b_JL.unflatten(0, (heads, -1))[:, :nope]
    return torch.cat((head_linear(q_THK[..., :nope], up_HNL.mT), rope(q_THK[..., nope:], cos_TF, sin_TF)), dim=-1)


def mla_epilog(out_THL: Tensor, kv_b_JL: Tensor, value: int) -> Tensor:
    """Value up-projections of attended latents: all heads' values [T, H * value], which are the last rows of a head."""
    up_HVL = kv_b_JL.unflatten(0, (out_THL.shape[1], -1))[:, -value:]
    return head_linear(out_THL, up_HVL).flatten(1)


def index_prolog(
    x_TD: Tensor,
    q_TJ: Tensor,
    wk_KD: Tensor,
    norm_K: Tensor,
    norm_bias_K: Tensor,
    weights_ID: Tensor,
    cos_TF: Tensor,
    sin_TF: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The lightning indexer around its queries' projection (spec 1.4); the rotated part comes first.

    Args:
        x_TD: tokens.
        q_TJ: all heads' queries as they are projected.
        wk_KD, norm_K, norm_bias_K, weights_ID: weights.
        cos_TF, sin_TF: tables.
        eps: of the norm.

    Returns:
        Queries [T, I, K], keys [T, K], head weights [T, I] with the constants ``(I K)^-0.5`` inside.
    """
    heads, width, rotary = len(weights_ID), len(wk_KD), 2 * cos_TF.shape[1]

    def rotate(x_TIK: Tensor) -> Tensor:
        return torch.cat((rope(x_TIK[..., :rotary], cos_TF, sin_TF), x_TIK[..., rotary:]), dim=-1)

    key_TK = F.layer_norm(linear(x_TD, wk_KD), (width,), norm_K, norm_bias_K, eps)
    w_TI = linear(x_TD, weights_ID) * (heads * width) ** -0.5
    return rotate(q_TJ.unflatten(-1, (heads, width))), rotate(key_TK[:, None])[:, 0], w_TI


def mlp(x_TD: Tensor, gate_FD: Tensor, up_FD: Tensor, down_DF: Tensor) -> Tensor:
    """``down(silu(gate x) * up x)``."""
    return linear(swiglu(linear(x_TD, gate_FD), linear(x_TD, up_FD)), down_DF)


def moe(
    x_TD: Tensor,
    router_ED: Tensor,
    bias_E: Tensor,
    gate_up_EFD: Tensor,
    down_EDF: Tensor,
    shared_gate_FD: Tensor,
    shared_up_FD: Tensor,
    shared_down_DF: Tensor,
    chosen: int,
    scale: float,
) -> Tensor:
    """A mixture of experts with a shared one (spec 1.5), without limits on groups; `route` chooses."""
    expert_TK, gate_TK = route(x_TD, router_ED, bias_E, chosen, scale)
    routed_TD = moe_experts(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)
    return routed_TD + mlp(x_TD, shared_gate_FD, shared_up_FD, shared_down_DF)


OPS: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "rope": rope,
    "linear": linear,
    "head_linear": head_linear,
    "swiglu": swiglu,
    "attention_varlen": attention_varlen,
    "window_attention": window_attention,
    "attention_decode": attention_decode,
    "mla_decode": mla_decode,
    "indexer_topk": indexer_topk,
    "sparse_mla": sparse_mla,
    "selected_attention": selected_attention,
    "indexer_kl": indexer_kl,
    "gated_delta_rule": gated_delta_rule,
    "router_scores": router_scores,
    "moe_experts": moe_experts,
    "linear_cross_entropy": linear_cross_entropy,
    "likeliest": likeliest,
    "race": race,
    "newton_schulz": newton_schulz,
    "hadamard": hadamard,
    "to_records": to_records,
    "quant_linear": quant_linear,
    "quant_experts": quant_experts,
    "mla_prolog": mla_prolog,
    "mla_absorb": mla_absorb,
    "mla_epilog": mla_epilog,
    "index_prolog": index_prolog,
    "mlp": mlp,
    "quant_mlp": quant_mlp,
    "moe": moe,
    "quant_moe": quant_moe,
}
