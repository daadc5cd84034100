"""The chip's kernels: same signatures and meaning as `arcforge_core.ops.reference`, other algorithms.

Shapes: T query tokens, S keys, H heads, G key/value heads, K key size, V value size; q, s rows of a tile; N outputs,
I inputs of a matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _RmsNorm(torch.autograd.Function):
    """Keeps one scale per row and the input; the gradient is written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1] + eps).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        out: Tensor = x * (scale * weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        weighted = grads[0] * weight
        grad_x = scale * (weighted - normed * (weighted * normed).mean(-1, keepdim=True))
        return grad_x, (grads[0] * normed).flatten(0, -2).sum(0), None


class _SwiGlu(torch.autograd.Function):
    """Keeps only the two inputs; the backward pass computes the sigmoid again."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return gate * up * gate.sigmoid()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        sigmoid = gate.sigmoid()
        grad_gate = grads[0] * up * sigmoid * (1 + gate * (1 - sigmoid))
        return grad_gate, grads[0] * gate * sigmoid


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis."""
    return _RmsNorm.apply(x, weight, eps)  # type: ignore[no-any-return]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Returns ``silu(gate) * up``."""
    return _SwiGlu.apply(gate, up)  # type: ignore[no-any-return]


def attention_varlen(
    q_THK: Tensor, k_SGK: Tensor, v_SGV: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float, *, tile: int
) -> Tensor:
    """Causal attention inside each segment, one tile of queries at a time over tiles of visible keys.

    A running maximum and a running sum replace the softmax, so no row of scores is ever whole
    (online softmax, Milakov and Gimelshein 2018).
    """
    starts_q, starts_k = cu_query.tolist(), cu_key.tolist()
    repeat = q_THK.shape[1] // k_SGK.shape[1]
    tiles = []
    for n in range(len(starts_q) - 1):
        q_HqK = q_THK[starts_q[n] : starts_q[n + 1]].transpose(0, 1) * scale
        k_HsK = k_SGK[starts_k[n] : starts_k[n + 1]].transpose(0, 1).repeat_interleave(repeat, dim=0)
        v_HsV = v_SGV[starts_k[n] : starts_k[n + 1]].transpose(0, 1).repeat_interleave(repeat, dim=0)
        past = k_HsK.shape[1] - q_HqK.shape[1]
        for first in range(0, q_HqK.shape[1], tile):
            rows = q_HqK[:, first : first + tile]
            tiles.append(_attend_tile(rows, k_HsK, v_HsV, past + first, tile).transpose(0, 1))
    return torch.cat(tiles)


def _attend_tile(q_HqK: Tensor, k_HsK: Tensor, v_HsV: Tensor, position: int, tile: int) -> Tensor:
    """Attends queries at `position`, `position` + 1, ... to the keys up to each."""
    heads, rows, _ = q_HqK.shape
    visible = position + rows
    query_positions = torch.arange(position, visible, device=q_HqK.device)
    maximum_Hq1 = q_HqK.new_full((heads, rows, 1), float("-inf"))
    total_Hq1 = q_HqK.new_zeros(heads, rows, 1)
    out_HqV = q_HqK.new_zeros(heads, rows, v_HsV.shape[-1])
    for first in range(0, visible, tile):
        last = min(first + tile, visible)
        hidden = torch.arange(first, last, device=q_HqK.device) > query_positions[:, None]
        scores_Hqs = (q_HqK @ k_HsK[:, first:last].mT).masked_fill(hidden, float("-inf"))
        # key 0 is in the first tile and visible to all, so the maximum is finite from then on
        new_maximum = torch.maximum(maximum_Hq1, scores_Hqs.detach().amax(-1, keepdim=True))
        rescale = torch.exp(maximum_Hq1 - new_maximum)
        weights_Hqs = torch.exp(scores_Hqs - new_maximum)
        total_Hq1 = total_Hq1 * rescale + weights_Hqs.sum(-1, keepdim=True)
        out_HqV = out_HqV * rescale + weights_Hqs @ v_HsV[:, first:last]
        maximum_Hq1 = new_maximum
    return out_HqV / total_Hq1


def linear(x: Tensor, weight_IN: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Returns ``x W^T (+ b)``, where W is stored by columns: the chip reads an input's weights in one burst."""
    out: Tensor = x @ weight_IN
    return out if bias_N is None else out + bias_N
