"""The indexer's loss by ``npu_sparse_lightning_indexer_grad_kl_loss``, which gives loss and gradients in one pass.

It reads the softmax statistics of sparse attention, which are computed again here: our ops do not pass them on.

Shapes: T query tokens, S keys, H heads, C latent plus rope, I index heads, D index head size, K selected keys.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_hw.ascend import indexer_topk, sparse_mla
from arcforge_hw.ascend.calls import index_list, npu, parts

HEADS, INDEX_HEADS = (32, 64, 128), (8, 16, 32, 64)
COUNTS = (1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192)
"""Selected keys; fewer are padded."""
QUERIES, KEYS, SEGMENTS = 8192, 131072, 256
"""Tokens of a segment, and segments, that are documented."""


def supports(call: OpCall) -> Verdict:
    """Returns whether the sizes are documented."""
    sizes = call.sizes
    if not (answer := sparse_mla.supports(OpCall("", "", call.dtype, sizes={**sizes, "latent_dim": 512}))).ok:
        return answer
    if sizes.get("heads") not in HEADS or sizes.get("index_heads") not in INDEX_HEADS:
        wanted = f"{HEADS} heads and {INDEX_HEADS} of the indexer"
        return Verdict(False, f"the fused loss takes {wanted}, not {sizes.get('heads')} and {sizes.get('index_heads')}")
    if sizes.get("index_dim") != indexer_topk.HEAD_DIM:
        return Verdict(False, f"the fused loss takes index heads of 128, not {sizes.get('index_dim')}")
    if sizes.get("topk", 1) > COUNTS[-1]:
        return Verdict(False, f"the fused loss takes up to 8192 selected keys, not {sizes.get('topk')}")
    return YES


def limits(
    q_THC: Tensor, kv_SC: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, indices_TK: Tensor, cu_query: Tensor,
    cu_key: Tensor, scale: float, use_relu: bool = True,
) -> Verdict:  # fmt: skip
    """Returns whether a call's segments are documented."""
    if not use_relu:
        return Verdict(False, "the fused loss has a ReLU")
    queries, keys = int(cu_query.diff().max()), int(cu_key.diff().max())
    if queries > QUERIES or keys > KEYS or len(cu_query) - 1 > SEGMENTS:
        longest = f"segments of {QUERIES} queries and {KEYS} keys, up to {SEGMENTS}"
        return Verdict(False, f"the fused loss takes {longest}; not {len(cu_query) - 1} of up to {queries} and {keys}")
    return YES


class FusedLoss(torch.autograd.Function):
    """The loss summed over tokens; the gradients come with it and wait for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, *rest: Any) -> Tensor:
        q_THC, kv_SC, indices_TK, cu_query, cu_key, scale = rest
        q_THC, kv_SC = q_THC.detach(), kv_SC.detach()
        _, largest, sums = sparse_mla.attend(q_THC, kv_SC, indices_TK, cu_query, cu_key, scale, True)
        query, query_rope = parts(q_THC)
        key, key_rope = parts(kv_SC[:, None])
        count = next(n for n in COUNTS if n >= indices_TK.shape[1])
        padded_TK = F.pad(indices_TK, (0, count - indices_TK.shape[1]), value=-1)
        dq, dk, dw, loss = npu("npu_sparse_lightning_indexer_grad_kl_loss")(
            query, key, q_TID.detach().contiguous(), k_SD.detach()[:, None].contiguous(), w_TI.detach().contiguous(),
            index_list(padded_TK), largest, sums, scale, query_rope=query_rope, key_rope=key_rope,
            actual_seq_qlen=cu_query[1:].tolist(), actual_seq_klen=cu_key[1:].tolist(), layout="TND", sparse_mode=3,
        )  # fmt: skip
        ctx.save_for_backward(dq, dk[:, 0], dw)
        total: Tensor = loss[0]
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *((grad * grads[0]).to(grad.dtype) for grad in ctx.saved_tensors), *(None,) * 6


def indexer_kl(
    q_THC: Tensor, kv_SC: Tensor, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, indices_TK: Tensor, cu_query: Tensor,
    cu_key: Tensor, scale: float, use_relu: bool = True,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.indexer_kl`."""
    loss: Tensor = FusedLoss.apply(q_TID, k_SD, w_TI, q_THC, kv_SC, indices_TK, cu_query, cu_key, scale)
    return loss
