"""The indexer's loss over selected keys in blocks of queries, which the backward pass recomputes.

Nothing is kept per selected key, so memory grows only with the number of tokens.

Shapes: T query tokens, S keys, H heads, C latent plus rope, I index heads, D index head size, K selected keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arcforge_core.ops.reference import indexer_kl_of_rows
from arcforge_hw.torch_ops import block_values
from arcforge_hw.torch_ops.sparse_mla import key_rows

SCORES = 1 << 22
"""Maximum number of attention scores of a block (`block_values`)."""


def register(forward: Any, backward: Any) -> None:
    """Registers custom ops with closed-form gradients for autograd and for fake tensors.

    Args:
        forward: ``(q_THC, kv_SC, q_TID, k_SD, w_TI, rows_TK, scale, relu)`` to the losses [T] and the gradients of the
            index scores [T, K], both in the dtype of `w_TI`.
        backward: ``(grad_T, dscores_TK, q_TID, k_SD, w_TI, rows_TK, relu)`` to those of `q_TID`, `k_SD` and `w_TI`.
    """

    def fake_forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        w_TI, rows_TK = inputs[4:6]
        return w_TI.new_empty(w_TI.shape[0]), w_TI.new_empty(rows_TK.shape)

    def fake_backward(*inputs: Any) -> tuple[Tensor, ...]:
        return tuple(x.new_empty(x.shape) for x in inputs[2:5])

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, _, q_TID, k_SD, w_TI, rows_TK, _, ctx.relu = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # avoids zeros as large as the gradients of the scores
        ctx.save_for_backward(output[1], q_TID, k_SD, w_TI, rows_TK)

    def gradients(ctx: Any, grad_T: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad_T is None:
            return (None,) * 8
        return None, None, *backward(grad_T, *ctx.saved_tensors, ctx.relu), None, None, None

    forward.register_fake(fake_forward)
    backward.register_fake(fake_backward)
    forward.register_autograd(gradients, setup_context=setup)


def indexer_kl(
    q_THC: Tensor, kv_SC: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, indices_TK: Tensor, cu_query: Tensor,
    cu_key: Tensor, scale: float, use_relu: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.indexer_kl`."""
    rows_TK = key_rows(indices_TK, cu_query, cu_key)
    length = max(1, block_values(SCORES, q_THC.device) // (rows_TK.shape[1] * q_THC.shape[1]))
    losses = []
    for parts in zip(*(x.split(length) for x in (q_THC, q_TID, w_TI, rows_TK)), strict=True):
        q_BHC, q_BID, w_BI, rows_BK = parts
        loss_B: Tensor = checkpoint(
            indexer_kl_of_rows, q_BHC, kv_SC, q_BID, k_SD, w_BI, rows_BK, scale, use_relu,
            use_reentrant=False, preserve_rng_state=False,
        )  # fmt: skip
        losses.append(loss_B)
    return torch.cat(losses).sum()
