"""Dense attention of ragged tokens by ``npu_fusion_attention``, with gradients.

Shapes: T query tokens, S keys, H heads, G key/value heads, K key size, V value size.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_core.ops.reference import laid_out
from arcforge_hw.ascend.calls import npu

WIDEST, SEGMENTS, MASK = 768, 1024, 2048
"""Largest head, number of segments, and side of the mask that the operator reads for every length."""


def supports(call: OpCall) -> Verdict:
    """Returns whether the sizes are documented."""
    key, value = call.sizes.get("key_dim", 1), call.sizes.get("value_dim", 1)
    if value > key or key > WIDEST:
        return Verdict(False, f"npu_fusion_attention takes values up to the keys' {WIDEST}, not {value} and {key}")
    return YES


def limits(q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float) -> Verdict:
    """Returns whether the number of segments is documented."""
    if len(cu_query) - 1 <= SEGMENTS:
        return YES
    return Verdict(False, f"npu_fusion_attention takes up to {SEGMENTS} segments, not {len(cu_query) - 1}")


def decode_limits(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float,
    pages: Pages | None = None,
) -> Verdict:  # fmt: skip
    """As `limits`."""
    return limits(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale)


def attention_decode(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.attention_decode`; pages are gathered."""
    k_SGK, v_SGV = (laid_out(x, cu_key, pages) for x in (k_SGK, v_SGV))
    return attention_varlen(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale)


@functools.cache
def _mask(device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # training saves it for the backward pass
        return torch.ones(MASK, MASK, dtype=torch.bool).triu(1).to(device)


def attention_varlen(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float
) -> Tensor:
    """See `arcforge_core.ops.reference.attention_varlen`; the mask is bottom-right causal (sparse_mode 3)."""
    out: Tensor = npu("npu_fusion_attention")(
        q_THK.contiguous(), k_SGK.contiguous(), v_SGV.contiguous(), q_THK.shape[1], "TND",
        atten_mask=_mask(q_THK.device), scale=scale, actual_seq_qlen=cu_query[1:].tolist(),
        actual_seq_kvlen=cu_key[1:].tolist(), sparse_mode=3,
    )[0]  # fmt: skip
    return out
