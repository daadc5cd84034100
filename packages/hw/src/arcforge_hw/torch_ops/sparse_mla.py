"""Absorbed attention to selected keys, in blocks of queries: gathered entries never exist for all queries.

The backward pass gathers entries and recomputes the probabilities, so only the inputs are kept and memory grows with
the number of tokens. Gradients of entries are added row by row in the order of the queries, the same on every run.

Shapes: T query tokens, S keys, H heads, C latent plus rope, L latent, K selected keys, B queries of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_hw.torch_ops import add_rows, block_values

ENTRIES = 1 << 21
"""Maximum number of gathered values of a block (`block_values`)."""


def key_rows(indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, pages: Pages | None = None) -> Tensor:
    """Returns the row of each selected key among the keys of all segments, or in their pages; -1 for padding."""
    if pages is not None:
        table_TP = pages.table_NP.repeat_interleave(cu_query.diff(), 0).to(indices_TK.device)
        page_TK = table_TP.gather(1, indices_TK.clamp(min=0) // pages.size)
        return torch.where(indices_TK < 0, -1, page_TK * pages.size + indices_TK % pages.size)
    if len(cu_key) == 2:
        return indices_TK
    starts_T = cu_key[:-1].long().repeat_interleave(cu_query.diff()).to(indices_TK.device)
    return torch.where(indices_TK < 0, -1, indices_TK + starts_T[:, None])


def _blocks(rows_TK: Tensor, width: int) -> Iterator[slice]:
    tokens, selected = rows_TK.shape
    length = max(1, block_values(ENTRIES, rows_TK.device) // (selected * width))
    for start in range(0, tokens, length):
        yield slice(start, min(start + length, tokens))


def _gather(kv_SC: Tensor, rows_BK: Tensor) -> Tensor:
    """Returns [B, K, C]; padding reads one of the query's own keys, which the mask hides: other rows may be NaN."""
    rows_BK = torch.where(rows_BK < 0, rows_BK.amax(1, keepdim=True), rows_BK)
    return kv_SC.index_select(0, rows_BK.flatten()).view(*rows_BK.shape, -1)


def _probabilities(q_BHC: Tensor, kv_BKC: Tensor, rows_BK: Tensor, scale: float) -> Tensor:
    scores_BHK = torch.bmm(q_BHC, kv_BKC.mT).mul_(scale).masked_fill_((rows_BK < 0)[:, None], float("-inf"))
    return scores_BHK.softmax(-1, dtype=torch.promote_types(q_BHC.dtype, torch.float32))


@torch.library.custom_op("arcforge_torch::sparse_mla", mutates_args=())
def _forward(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int, scale: float) -> Tensor:
    out_THL = q_THC.new_empty(*q_THC.shape[:2], latent_dim)
    for rows in _blocks(rows_TK, kv_SC.shape[1]):
        kv_BKC = _gather(kv_SC, rows_TK[rows])
        probs_BHK = _probabilities(q_THC[rows], kv_BKC, rows_TK[rows], scale)
        out_THL[rows] = torch.bmm(probs_BHK.to(kv_SC.dtype), kv_BKC[..., :latent_dim])
    return out_THL


@_forward.register_fake
def _(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int, scale: float) -> Tensor:
    return q_THC.new_empty(*q_THC.shape[:2], latent_dim)


@torch.library.custom_op("arcforge_torch::sparse_mla_backward", mutates_args=())
def _backward(
    grad_THL: Tensor, q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent_dim: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of queries and entries."""
    dq_THC = torch.empty_like(q_THC, memory_format=torch.contiguous_format)
    dkv_SC = kv_SC.new_zeros(kv_SC.shape, dtype=torch.promote_types(kv_SC.dtype, torch.float32))
    for rows in _blocks(rows_TK, kv_SC.shape[1]):
        q_BHC, grad_BHL, rows_BK = q_THC[rows], grad_THL[rows], rows_TK[rows]
        kv_BKC = _gather(kv_SC, rows_BK)
        probs_BHK = _probabilities(q_BHC, kv_BKC, rows_BK, scale)
        dprobs_BHK = torch.bmm(grad_BHL, kv_BKC[..., :latent_dim].mT).to(probs_BHK.dtype)
        dscores = torch._softmax_backward_data(dprobs_BHK, probs_BHK, -1, probs_BHK.dtype).mul_(scale).to(q_THC.dtype)
        dq_THC[rows] = torch.bmm(dscores, kv_BKC)
        dkv_BKC = torch.bmm(dscores.mT, q_BHC)
        dkv_BKC[..., :latent_dim] += torch.bmm(probs_BHK.mT.to(grad_BHL.dtype), grad_BHL)
        # padding has probability 0 and adds 0 to the first row
        add_rows(dkv_SC, rows_BK.clamp(min=0).flatten(), dkv_BKC.flatten(0, 1).to(dkv_SC.dtype))
    return dq_THC, dkv_SC.to(kv_SC.dtype)


@_backward.register_fake
def _(grad_THL: Tensor, q_THC: Tensor, kv_SC: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q_THC.new_empty(q_THC.shape), kv_SC.new_empty(kv_SC.shape)


def register_gradients(forward: Any, backward: Any) -> None:
    """Makes a custom op ``forward(q_THC, kv_SC, rows_TK, latent_dim, scale)`` differentiable by `backward`."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q_THC, kv_SC, rows_TK, ctx.latent_dim, ctx.scale = inputs
        ctx.save_for_backward(q_THC, kv_SC, rows_TK)

    def gradients(ctx: Any, grad_THL: Tensor) -> tuple[Tensor | None, ...]:
        return *backward(grad_THL, *ctx.saved_tensors, ctx.latent_dim, ctx.scale), None, None, None

    forward.register_autograd(gradients, setup_context=setup)


register_gradients(_forward, _backward)


def sparse_mla(
    q_THC: Tensor, kv_SC: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.sparse_mla`."""
    out_THL: Tensor = _forward(q_THC, kv_SC, key_rows(indices_TK, cu_query, cu_key, pages), latent_dim, scale)
    return out_THL
