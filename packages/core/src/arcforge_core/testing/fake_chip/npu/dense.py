"""``npu_fusion_attention``: dense attention of ragged tokens, and its gradient. See `layouts` for the source.

Shapes: T query tokens, S keys, N heads, G key/value heads, D key size, V value size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_core.ops.reference import causal_mask
from arcforge_core.testing.fake_chip.npu.layouts import contiguous, spans
from arcforge_core.testing.fake_chip.npu.rows import FLOATS
from arcforge_core.testing.fake_chip.vendor import need

COMPRESSED = 2048
"""Side of the mask that sparse_mode 3 reads for every length: True above the diagonal."""
REPEATED = 8
"""Copies of each softmax statistic."""


def fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, pse: Tensor | None = None,
    padding_mask: Tensor | None = None, atten_mask: Tensor | None = None, scale: float = 1.0, keep_prob: float = 1.0,
    pre_tockens: int = 2147483647, next_tockens: int = 2147483647, inner_precise: int = 0,
    prefix: list[int] | None = None, actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None, sparse_mode: int = 0, **others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:  # fmt: skip
    """Returns [T, N, V], the largest score and the sum of exponentials [T, N, 8], and nothing of dropout."""
    op = "npu_fusion_attention"
    rows_q, rows_k = _demands(
        op, query, key, value, head_num, input_layout, atten_mask, keep_prob, actual_seq_qlen, actual_seq_kvlen,
        sparse_mode, (pse, padding_mask, prefix, others.get("sink"), others.get("dropout_mask")),
    )  # fmt: skip
    outs, largest, sums = [], [], []
    for q_rows, k_rows in zip(rows_q, rows_k, strict=True):
        scores = _scores(query[slice(*q_rows)], key[slice(*k_rows)], scale)
        most = scores.amax(-1)
        weights = (scores - most[..., None]).exp()
        v_SNV = _shared(value[slice(*k_rows)], head_num)
        outs.append(torch.einsum("nts,snv->tnv", weights / weights.sum(-1, keepdim=True), v_SNV))
        largest.append(most.mT)
        sums.append(weights.sum(-1).mT)
    stats = [torch.cat(x)[..., None].expand(-1, -1, REPEATED).contiguous() for x in (largest, sums)]
    return torch.cat(outs).to(query.dtype), stats[0], stats[1], query.new_empty(0), 0, 0, 0


def _demands(
    op: str, query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str, mask: Tensor | None,
    keep: float, qlen: list[int] | None, kvlen: list[int] | None, mode: int, absent: tuple[Any, ...],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:  # fmt: skip
    need(layout == "TND" and query.ndim == key.ndim == value.ndim == 3, op, "this chip has input_layout=TND only")
    need(query.dtype in FLOATS and query.dtype == key.dtype == value.dtype, op, "all must have one floating dtype")
    need(heads == query.shape[1] and heads % key.shape[1] == 0, op, "head_num must be query's, a multiple of key's")
    need(key.shape[:2] == value.shape[:2], op, "key and value must have the same tokens and heads")
    need(query.shape[2] == key.shape[2] >= value.shape[2] and key.shape[2] <= 768, op, "D must be one, 768 at most")
    need(keep == 1.0 and all(x is None for x in absent), op, "this chip has no dropout, biases, prefixes and sinks")
    contiguous(op, query=query, key=key, value=value)
    need(mode == 3 and mask is not None, op, "this chip has sparse_mode=3 only, which reads atten_mask")
    assert mask is not None
    need(
        mask.dtype in (torch.bool, torch.uint8) and mask.shape == (COMPRESSED, COMPRESSED), op, "a mask of 2048 x 2048"
    )
    wanted = torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool).triu(1)
    need(bool((mask.bool() == wanted).all()), op, "atten_mask must be true above its diagonal, and only there")
    need(qlen is not None and kvlen is not None and len(qlen) <= 1024, op, "lengths of up to 1024 sequences")
    return spans(op, "actual_seq_qlen", qlen or [], len(query)), spans(op, "actual_seq_kvlen", kvlen or [], len(key))


def _shared(x_SGD: Tensor, heads: int) -> Tensor:
    return x_SGD.float().repeat_interleave(heads // x_SGD.shape[1], 1)


def _scores(q_TND: Tensor, k_SGD: Tensor, scale: float) -> Tensor:
    scores = torch.einsum("tnd,snd->nts", q_TND.float(), _shared(k_SGD, q_TND.shape[1])) * scale
    return scores.masked_fill(~causal_mask(len(q_TND), len(k_SGD), q_TND.device), float("-inf"))


def fusion_attention_grad(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, *,
    atten_mask: Tensor | None = None, softmax_max: Tensor | None = None, softmax_sum: Tensor | None = None,
    attention_in: Tensor | None = None, scale_value: float = 1.0, keep_prob: float = 1.0,
    actual_seq_qlen: list[int] | None = None, actual_seq_kvlen: list[int] | None = None, sparse_mode: int = 0,
    **others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of query, key and value; those of biases and sinks are empty."""
    op = "npu_fusion_attention_grad"
    rows_q, rows_k = _demands(
        op, query, key, value, head_num, input_layout, atten_mask, keep_prob, actual_seq_qlen, actual_seq_kvlen,
        sparse_mode, (others.get("pse"), others.get("prefix"), others.get("sink")),
    )  # fmt: skip
    assert softmax_max is not None and softmax_sum is not None and attention_in is not None
    need(dy.shape == attention_in.shape and dy.dtype == query.dtype, op, "dy must be like the output")
    dq, dk, dv = [], [], []
    for q_rows, k_rows in zip(rows_q, rows_k, strict=True):
        here, there = slice(*q_rows), slice(*k_rows)
        q, k, v, d = (
            query[here].float(),
            _shared(key[there], head_num),
            _shared(value[there], head_num),
            dy[here].float(),
        )
        p = (_scores(query[here], key[there], scale_value) - softmax_max[here, :, 0].mT[..., None]).exp()
        p = p / softmax_sum[here, :, 0].mT[..., None]
        delta = (d * attention_in[here].float()).sum(-1).mT[..., None]
        ds = p * (torch.einsum("tnv,snv->nts", d, v) - delta) * scale_value
        dq.append(torch.einsum("nts,snd->tnd", ds, k))
        groups = (key.shape[1], head_num // key.shape[1])
        dk.append(torch.einsum("nts,tnd->snd", ds, q).unflatten(1, groups).sum(2))
        dv.append(torch.einsum("nts,tnv->snv", p, d).unflatten(1, groups).sum(2))
    found = (torch.cat(x).to(query.dtype) for x in (dq, dk, dv))
    none = query.new_empty(0)
    return *found, none, none  # type: ignore[return-value]


def fusion_attention_gradients(
    given: dict[str, Any], outs: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """As in ``derivatives.yaml``."""
    names = ("query", "key", "value")
    found = torch.ops.npu.npu_fusion_attention_grad(
        *(given[name] for name in names), grads[0].contiguous(), given["head_num"], given["input_layout"],
        atten_mask=given["atten_mask"], softmax_max=outs[1], softmax_sum=outs[2], softmax_in=outs[3],
        attention_in=outs[0], scale_value=given["scale"], keep_prob=given["keep_prob"],
        actual_seq_qlen=given["actual_seq_qlen"], actual_seq_kvlen=given["actual_seq_kvlen"],
        sparse_mode=given["sparse_mode"],
    )  # fmt: skip
    return dict(zip(names, found, strict=False))
