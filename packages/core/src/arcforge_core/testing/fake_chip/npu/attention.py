"""``npu_lightning_indexer`` and its int8 form, ``npu_sparse_flash_attention`` and its gradient.

Shapes: T query tokens, S keys, H heads, D size of a key, L latent (512), R rotated part (64), I index heads, K selected
keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_core.ops.reference import causal_mask, index_scores
from arcforge_core.testing.fake_chip.npu.layouts import (
    EVER,
    HALF,
    causal_mode,
    contiguous,
    keys_of,
    prefix_sums,
    selected,
)  # fmt: skip
from arcforge_core.testing.fake_chip.vendor import need

INDEX, LATENT, ROTATED = 128, 512, 64
"""Sizes of an index key, of the latent part and of the rotated part of an attention key."""
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Heads of sparse attention on A2 and A3."""
COUNTS = (*range(1, 2049), 3072, 4096, 5120, 6144, 7168, 8192)
"""Selected keys of the indexer."""


def lightning_indexer(
    query: Tensor, key: Tensor, weights: Tensor, *, actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None, block_table: Tensor | None = None, layout_query: str = "BSND",
    layout_key: str = "BSND", sparse_count: int = 2048, sparse_mode: int = 3, pre_tokens: int = EVER,
    next_tokens: int = EVER, return_value: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the keys of highest index score, best first, int32 [T, 1, K], -1 at the end, and their scores.

    No document says which of two equal scores comes first; here it is the lower index.
    """
    op = "npu_lightning_indexer"
    need(query.dtype in HALF and key.dtype == query.dtype, op, "query and key must both be bfloat16 or float16")
    need(weights.dtype in (query.dtype, torch.float32), op, "weights must have query's dtype or float32")
    need(not return_value or layout_key != "PA_BSND", op, "return_value is not supported with PA_BSND")
    contiguous(op, query=query, key=key, weights=weights)
    causal_mode(op, sparse_mode, pre_tokens, next_tokens)
    _index_shapes(op, query, key, weights, layout_query, sparse_count)
    spans = prefix_sums(op, "actual_seq_lengths_query", actual_seq_lengths_query, len(query))
    keys = keys_of(op, key, layout_key, actual_seq_lengths_key, block_table, len(spans))
    parts = []
    for (start, end), k_SD in zip(spans, keys, strict=True):
        scores_TS = index_scores(query[start:end], k_SD, weights[start:end])
        parts.append(_best(scores_TS, sparse_count, sparse_mode == 3))
    indices, values = (torch.cat(x)[:, None] for x in zip(*parts, strict=True))
    return indices.int(), values.to(query.dtype) if return_value else query.new_empty(0)


def _index_shapes(op: str, query: Tensor, key: Tensor, weights: Tensor, layout: str, count: int) -> None:
    need(layout == "TND" and query.ndim == 3, op, "this chip has layout_query=TND only, queries [T, N, D]")
    need(query.shape[2] == key.shape[-1] == INDEX, op, f"D must be {INDEX}")
    need(query.shape[1] <= 64 and weights.shape == query.shape[:2], op, "weights are [T, N] of at most 64 heads")
    need(count in COUNTS, op, f"sparse_count={count} must be up to 2048, or a multiple of 1024 up to 8192")


def _best(scores_TS: Tensor, count: int, causal: bool) -> tuple[Tensor, Tensor]:
    if causal:
        queries, keys = scores_TS.shape
        scores_TS = scores_TS.masked_fill(~causal_mask(queries, keys, scores_TS.device), float("-inf"))
    order_TS = scores_TS.sort(dim=-1, descending=True, stable=True)
    chosen_TK = order_TS.indices[:, :count].masked_fill(order_TS.values[:, :count].isneginf(), -1)
    missing = count - chosen_TK.shape[1]
    pad = torch.nn.functional.pad
    return pad(chosen_TK, (0, missing), value=-1), pad(order_TS.values[:, :count], (0, missing), value=float("-inf"))


def quant_lightning_indexer(
    query: Tensor, key: Tensor, weights: Tensor, query_dequant_scale: Tensor, key_dequant_scale: Tensor,
    query_quant_mode: int, key_quant_mode: int, *, actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None, block_table: Tensor | None = None, layout_query: str = "BSND",
    layout_key: str = "BSND", sparse_count: int = 2048, sparse_mode: int = 3, pre_tokens: int = EVER,
    next_tokens: int = EVER, query_dtype: int | None = None, key_dtype: int | None = None,
) -> Tensor:  # fmt: skip
    """Returns `lightning_indexer`'s indices for int8 queries and keys, with a float16 scale for each head's query."""
    op = "npu_quant_lightning_indexer"
    need(query.dtype == key.dtype == torch.int8, op, "query and key must be int8")
    half = weights.dtype == query_dequant_scale.dtype == key_dequant_scale.dtype == torch.float16
    need(half, op, "weights and scales must be float16")
    need(query_quant_mode == key_quant_mode == 0, op, "quantisation modes must be 0, per token and head")
    contiguous(op, query=query, key=key, weights=weights, query_dequant_scale=query_dequant_scale)
    causal_mode(op, sparse_mode, pre_tokens, next_tokens)
    need(sparse_count <= 2048, op, "sparse_count must be up to 2048")
    _index_shapes(op, query, key, weights, layout_query, sparse_count)
    need(query_dequant_scale.shape == query.shape[:2], op, "query_dequant_scale is [T, N]")
    need(key_dequant_scale.shape == key.shape[:-1], op, "key_dequant_scale has a scale for each key")
    need(bool((weights.float() * query_dequant_scale.float()).abs().max() < 65504), op, "w * scale must fit float16")
    spans = prefix_sums(op, "actual_seq_lengths_query", actual_seq_lengths_query, len(query))
    keys = keys_of(op, key, layout_key, actual_seq_lengths_key, block_table, len(spans))
    scales = keys_of(op, key_dequant_scale[..., None], layout_key, actual_seq_lengths_key, block_table, len(spans))
    chosen = []
    for (start, end), k_SD, scale_S1 in zip(spans, keys, scales, strict=True):
        w_TI = weights[start:end].float() * query_dequant_scale[start:end].float()
        scores_TS = index_scores(query[start:end].float(), k_SD.float(), w_TI) * scale_S1[:, 0].float()
        chosen.append(_best(scores_TS, sparse_count, sparse_mode == 3)[0])
    return torch.cat(chosen)[:, None].int()


def sparse_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, sparse_indices: Tensor, scale_value: float, *,
    block_table: Tensor | None = None, actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None, query_rope: Tensor | None = None, key_rope: Tensor | None = None,
    sparse_block_size: int = 1, layout_query: str = "BSND", layout_kv: str = "BSND", sparse_mode: int = 3,
    pre_tokens: int = EVER, next_tokens: int = EVER, attention_mode: int = 0, return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns attended latents [T, H, L], and each head's largest score and sum of exponentials, [1, T, H]."""
    op = "npu_sparse_flash_attention"
    need(sinks is None, op, "sinks are not supported on A2 and A3")
    need(not return_softmax_lse or layout_kv != "PA_BSND", op, "return_softmax_lse is not supported with PA_BSND")
    causal_mode(op, sparse_mode, pre_tokens, next_tokens)
    query_rope, key_rope = attention_inputs(
        op, query, key, value, sparse_indices, query_rope, key_rope, sparse_block_size, layout_query, attention_mode
    )
    spans = prefix_sums(op, "actual_seq_lengths_query", actual_seq_lengths_query, len(query))
    places = (layout_kv, actual_seq_lengths_kv, block_table, len(spans))
    keys = zip(keys_of(op, key, *places), keys_of(op, key_rope, *places), strict=True)
    outs, largest, sums = [], [], []
    for (start, end), (k_SL, k_SR) in zip(spans, keys, strict=True):
        index_TK, valid_TK = selected(op, sparse_indices[start:end, 0], len(k_SL), sparse_mode == 3)
        q_THC = torch.cat((query[start:end], query_rope[start:end]), -1).float()
        kv_TKC = torch.cat((k_SL, k_SR), -1).float()[index_TK.clamp(min=0)]
        scores = torch.einsum("thc,tkc->thk", q_THC, kv_TKC) * scale_value
        scores = scores.masked_fill(~valid_TK[:, None], float("-inf"))
        most = scores.amax(-1)
        weights = (scores - most[..., None]).exp()
        outs.append(torch.einsum("thk,tkl->thl", weights, kv_TKC[..., :LATENT]) / weights.sum(-1, keepdim=True))
        largest.append(most)
        sums.append(weights.sum(-1))
    out = torch.cat(outs).to(query.dtype)
    if not return_softmax_lse:
        return out, torch.empty(0), torch.empty(0)
    return out, torch.cat(largest)[None], torch.cat(sums)[None]


def attention_inputs(
    op: str, query: Tensor, key: Tensor, value: Tensor, indices: Tensor, query_rope: Tensor | None,
    key_rope: Tensor | None, block: int, layout: str, mode: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Demands what sparse attention and its gradient have in common; returns the rotated parts."""
    if query_rope is None or key_rope is None:
        need(False, op, "query_rope and key_rope are required")
        raise AssertionError
    given = (query, key, value, query_rope, key_rope)
    need(query.dtype in HALF and all(x.dtype == query.dtype for x in given), op, "all must be bfloat16 or float16")
    need(mode == 2, op, f"attention_mode={mode} must be 2, absorbed MLA")
    need(layout == "TND" and query.ndim == 3, op, "this chip has layout_query=TND only, queries [T, N, D]")
    need(query.shape[1] in HEADS, op, f"{query.shape[1]} heads must be a power of two up to 128")
    need(query.shape[2] == key.shape[-1] == LATENT, op, f"D must be {LATENT}")
    need(query_rope.shape == (*query.shape[:2], ROTATED), op, f"query_rope must be [T, N, {ROTATED}]")
    need(key_rope.shape == (*key.shape[:-1], ROTATED), op, f"key_rope must have key's layout and D={ROTATED}")
    need(value.shape == key.shape and value.data_ptr() == key.data_ptr(), op, "value must be key's memory")
    need(block == 1, op, "this chip has sparse_block_size=1 only")
    need(indices.dtype == torch.int32, op, "sparse_indices must be int32")
    need(indices.ndim == 3 and indices.shape[:2] == (len(query), 1), op, "sparse_indices must be [T, 1, K]")
    need(indices.numel() > 0, op, "sparse_indices must not be empty")
    contiguous(op, query=query, key=key, sparse_indices=indices, query_rope=query_rope, key_rope=key_rope)
    return query_rope, key_rope


def sparse_flash_attention_grad(
    query: Tensor, key: Tensor, value: Tensor, sparse_indices: Tensor, d_out: Tensor, out: Tensor, softmax_max: Tensor,
    softmax_sum: Tensor, scale_value: float, sparse_block_size: int, query_rope: Tensor | None = None,
    key_rope: Tensor | None = None, actual_seq_qlen: Tensor | None = None, actual_seq_kvlen: Tensor | None = None,
    layout: str = "BSND", sparse_mode: int = 3, pre_tokens: int = EVER, next_tokens: int = EVER,
    attention_mode: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key, value, query_rope and key_rope; key's is that of the scores alone."""
    op = "npu_sparse_flash_attention_grad"
    causal_mode(op, sparse_mode, pre_tokens, next_tokens)
    query_rope, key_rope = attention_inputs(
        op, query, key, value, sparse_indices, query_rope, key_rope, sparse_block_size, layout, attention_mode
    )
    stats = (1, *query.shape[:2])
    need(softmax_max.shape == softmax_sum.shape == stats, op, "softmax_max and softmax_sum must be [1, T, N]")
    need(d_out.shape == out.shape == query.shape and d_out.dtype == query.dtype, op, "d_out must be like query")
    contiguous(op, d_out=d_out, out=out)
    dq, dkv = torch.zeros(*query.shape[:2], LATENT + ROTATED), torch.zeros(len(key), LATENT + ROTATED)
    dv = torch.zeros(len(key), LATENT)
    kv_SC, q_THC = (torch.cat(x, -1).float() for x in ((key[:, 0], key_rope[:, 0]), (query, query_rope)))
    rows_q = prefix_sums(op, "actual_seq_qlen", actual_seq_qlen, len(query))
    rows_k = prefix_sums(op, "actual_seq_kvlen", actual_seq_kvlen, len(key))
    for (start, end), (first, last) in zip(rows_q, rows_k, strict=True):
        index_TK, valid_TK = selected(op, sparse_indices[start:end, 0], last - first, sparse_mode == 3)
        row_TK, q = index_TK.clamp(min=0) + first, q_THC[start:end]
        kv_TKC = kv_SC[row_TK]
        scores = torch.einsum("thc,tkc->thk", q, kv_TKC) * scale_value
        p = (scores - softmax_max[0, start:end, :, None]).exp() / softmax_sum[0, start:end, :, None]
        p = p.masked_fill(~valid_TK[:, None], 0.0)
        d = d_out[start:end].float()
        dp = torch.einsum("thl,tkl->thk", d, kv_TKC[..., :LATENT])
        ds = p * (dp - (d * out[start:end].float()).sum(-1, keepdim=True)) * scale_value
        dq[start:end] = torch.einsum("thk,tkc->thc", ds, kv_TKC)
        dkv.index_add_(0, row_TK.flatten(), torch.einsum("thk,thc->tkc", ds, q).flatten(0, 1))
        dv.index_add_(0, row_TK.flatten(), torch.einsum("thk,thl->tkl", p, d).flatten(0, 1))
    dq, dkv, dv = (x.to(query.dtype) for x in (dq, dkv, dv))
    dk, dkr = dkv[:, None].split((LATENT, ROTATED), -1)
    dqn, dqr = dq.split((LATENT, ROTATED), -1)
    return dqn.contiguous(), dk.contiguous(), dv[:, None], dqr.contiguous(), dkr.contiguous()


def sparse_flash_attention_gradients(
    given: dict[str, Any], outs: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """As in ``derivatives.yaml``."""
    found = torch.ops.npu.npu_sparse_flash_attention_grad(
        given["query"], given["key"], given["value"], given["sparse_indices"], grads[0].contiguous(), *outs,
        given["scale_value"], given["sparse_block_size"], given["query_rope"], given["key_rope"],
        given["actual_seq_lengths_query"], given["actual_seq_lengths_kv"], given["layout_query"], given["sparse_mode"],
        given["pre_tokens"], given["next_tokens"], given["attention_mode"],
    )  # fmt: skip
    return dict(zip(("query", "key", "value", "query_rope", "key_rope"), found, strict=True))
