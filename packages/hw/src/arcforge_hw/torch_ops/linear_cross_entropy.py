"""Linear layer and cross-entropy in chunks of tokens: the full logits never exist.

The forward pass computes the gradients while it has a chunk's logits; the backward pass only scales them. Tokens of
weight 0 are skipped. In bfloat16 on CPUs a chunk is padded to whole `blocks` with rows of weight 0.

Shapes: T tokens, B tokens of a chunk, D hidden, W vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_hw.torch_ops.bf16_product import wants_fp32
from arcforge_hw.torch_ops.blocks import in_blocks, whole

CHUNK = 1024
"""Tokens whose logits exist at a time in fp32 or wider; twice as many in bfloat16: the same number of bytes."""


def chunk_of(x_TD: Tensor) -> int:
    """Returns the tokens per chunk: every further chunk costs a pass over the weight's gradient in fp32."""
    return 2 * CHUNK if x_TD.dtype == torch.bfloat16 else CHUNK


Rows = Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor, Tensor]]
"""Maps logits [B, W], which it may overwrite, targets [B, 1] and whether gradients are needed to losses and sums of
exponentials [B, 1], fp32 or wider, and if needed the logits' gradients times those sums, in their dtype."""


def chunked(
    x_TD: Tensor, weight_WD: Tensor, target_T: Tensor, weight_T: Tensor, needs_grad: bool, chunk: int, row_losses: Rows
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the loss and the gradients of x and of the linear weight (empty unless needed)."""
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    loss = x_TD.new_zeros((), dtype=wide)
    grad_x_TD = x_TD.new_zeros(x_TD.shape if needs_grad else 0)
    grad_WD = weight_WD.new_zeros(weight_WD.shape if needs_grad else 0)
    counted, given = weight_T.nonzero().flatten(), (x_TD, target_T[:, None], weight_T[:, None].to(wide))
    # one buffer for all chunks: allocating each costs more than the exponentials
    buffer = x_TD.new_empty(rows_of(x_TD, min(chunk, len(counted))), len(weight_WD))
    for number, rows in enumerate(counted.split(chunk)):
        filled = rows_of(x_TD, len(rows))
        x, target, weight = (of[rows] for of in given)
        if filled > len(rows):
            x, target, weight = (F.pad(of, (0, 0, 0, filled - len(rows))) for of in (x, target, weight))
        logits = torch.mm(x, weight_WD.mT, out=buffer[:filled])
        losses, total, grad = row_losses(logits, target, needs_grad)
        loss += (losses * weight).sum()
        if needs_grad:
            scale = weight / total
            grad_x_TD[rows] = ((grad @ weight_WD) * scale)[: len(rows)].to(x.dtype)
            scaled_x = (x * scale).to(x.dtype)
            if number == 0:
                torch.mm(grad.mT, scaled_x, out=grad_WD)
            elif wide == x.dtype:
                grad_WD.addmm_(grad.mT, scaled_x)
            else:
                grad_WD = grad_WD.to(wide).add_(grad.mT @ scaled_x)
    return loss, grad_x_TD, grad_WD.to(weight_WD.dtype)


def rows_of(x_TD: Tensor, counted: int) -> int:
    """Returns the rows of a chunk's products."""
    return whole(counted) if in_blocks(x_TD) else counted


def row_losses(logits_BW: Tensor, target_B1: Tensor, needs_grad: bool) -> tuple[Tensor, Tensor, Tensor]:
    """See `Rows`."""
    exps = logits_BW.to(torch.promote_types(logits_BW.dtype, torch.float32))
    target_logit, largest = exps.gather(1, target_B1), exps.amax(-1, keepdim=True)
    total = exps.sub_(largest).exp_().sum(-1, keepdim=True)
    if needs_grad:
        exps.scatter_add_(1, target_B1, -total)
        exps = exps.to(logits_BW.dtype)
    return largest + total.log() - target_logit, total, exps


def define(namespace: str, row_losses: Rows, chunk_of: Callable[[Tensor], int] = chunk_of) -> Callable[..., Tensor]:
    """Returns the op with these row operations; it calls the new custom op ``NAMESPACE::linear_cross_entropy``.

    Args:
        namespace: of the custom op, which `torch.compile` calls by name.
        row_losses: computes a chunk.
        chunk_of: tokens per chunk, by x.
    """

    @torch.library.custom_op(f"{namespace}::linear_cross_entropy", mutates_args=())
    def forward(
        x_TD: Tensor, weight_WD: Tensor, target_T: Tensor, weight_T: Tensor, needs_grad: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return chunked(x_TD, weight_WD, target_T, weight_T, needs_grad, chunk_of(x_TD), row_losses)

    def fake(x_TD: Tensor, weight_WD: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        loss = x_TD.new_empty((), dtype=torch.promote_types(x_TD.dtype, torch.float32))
        grad_x_TD, grad_WD = (x.new_empty(x.shape if rest[-1] else 0) for x in (x_TD, weight_WD))
        return loss, grad_x_TD, grad_WD

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # avoids zeros as large as the saved gradients
        ctx.save_for_backward(*output[1:])

    def gradients(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        grad_x_TD, grad_WD = ctx.saved_tensors
        return (grad_x_TD * grad.to(grad_x_TD.dtype), grad_WD * grad.to(grad_WD.dtype), None, None, None)

    forward.register_fake(fake)
    forward.register_autograd(gradients, setup_context=setup)

    def linear_cross_entropy(x_TD: Tensor, weight_WD: Tensor, target_T: Tensor, weight_T: Tensor) -> Tensor:
        """Weighted sum of negative log-likelihoods; see `arcforge_core.ops.reference.linear_cross_entropy`."""
        needs_grad = torch.is_grad_enabled() and (x_TD.requires_grad or weight_WD.requires_grad)
        if wants_fp32(x_TD, weight_WD, min(len(x_TD), CHUNK)):
            x_TD, weight_WD = x_TD.float(), weight_WD.float()
        loss: Tensor = forward(x_TD, weight_WD, target_T, weight_T.detach(), needs_grad)[0]
        return loss

    return linear_cross_entropy


linear_cross_entropy = define("arcforge_torch", row_losses)
