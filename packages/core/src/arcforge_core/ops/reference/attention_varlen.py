"""Causal attention inside ragged segments.

Shapes: T query tokens, S keys, H heads, G key/value heads (H a multiple of G), K key size, V value size.
"""

from __future__ import annotations

from torch import Tensor

from arcforge_core.ops.reference.window_attention import window_attention


def attention_varlen(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float
) -> Tensor:
    """Causal attention inside each segment, softmax in fp32.

    Returns:
        [T, H, V] in q's dtype.
    """
    return window_attention(q_THK, k_SGK, v_SGV, cu_query, cu_key, len(k_SGK), scale)
