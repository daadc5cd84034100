"""Choice of experts, and rows brought to them and back. See `layouts` for the source.

Shapes: T tokens, D hidden, E experts, K experts per token, R = T * K rows in the order of their experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcforge_core.ops.quant import INT8, quantise
from arcforge_core.testing.fake_chip.npu.rows import FLOATS
from arcforge_core.testing.fake_chip.vendor import need


def gating_top_k(
    x: Tensor, k: int, *, bias: Tensor | None = None, input_ids: Tensor | None = None, tid2eid: Tensor | None = None,
    k_group: int = 1, group_count: int = 1, group_select_mode: int = 0, renorm: int = 0, norm_type: int = 0,
    out_flag: bool = False, routed_scaling_factor: float = 1.0, eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns gates and experts of each row of logits, and the scores if asked for; the bias only chooses."""
    op = "npu_moe_gating_top_k"
    need(x.ndim == 2 and x.dtype in FLOATS and x.shape[1] <= 2048, op, "x must be floating [T, up to 2048]")
    need(group_count == k_group == 1 and x.shape[1] > 2, op, "this chip has one group, of more than two experts")
    need(1 <= k <= x.shape[1] and renorm == 0 and norm_type in (0, 1), op, "renorm must be 0, norm_type 0 or 1")
    need(input_ids is None and tid2eid is None, op, "this chip has no table of experts")
    need(bias is None or (bias.dtype == x.dtype and bias.shape == x.shape[1:]), op, "bias must be [E] of x's dtype")
    score_TE = x.float().sigmoid() if norm_type == 1 else x.float().softmax(-1)
    choice_TE = score_TE if bias is None else score_TE + bias.float()
    expert_TK = choice_TE.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    gate_TK = score_TE.gather(1, expert_TK)
    if norm_type == 1:
        gate_TK = gate_TK / (gate_TK.sum(-1, keepdim=True) + eps)
    scores = score_TE if out_flag else torch.empty(0)
    return (gate_TK * routed_scaling_factor).to(x.dtype), expert_TK.int().contiguous(), scores


def init_routing_v2(
    x: Tensor, expert_idx: Tensor, *, scale: Tensor | None = None, offset: Tensor | None = None, active_num: int = -1,
    expert_capacity: int = -1, expert_num: int = -1, drop_pad_mode: int = 0, expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False, quant_mode: int = -1, active_expert_range: list[int] | None = None,
    row_idx_type: int = 0, x_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns rows in the order of their experts, each choice's row (or each row's choice), counts, and scales.

    Rows are int8 with float32 scales for quant_mode 1. Counts are sizes (type 1) or prefix sums (0), int64.
    """
    op = "npu_moe_init_routing_v2"
    need(x.ndim == 2 and x.dtype in FLOATS, op, "x must be floating [T, D]")
    need(expert_idx.dtype == torch.int32 and expert_idx.ndim == 2, op, "expert_idx must be int32 [T, K]")
    need(len(expert_idx) == len(x), op, "expert_idx must have a row for each of x")
    need(expert_num > 0 and bool((expert_idx < expert_num).all()), op, "expert_num must be given, above all experts")
    need(drop_pad_mode == 0 and active_num in (-1, 0, expert_idx.numel()), op, "this chip drops no rows")
    need(list(active_expert_range or []) in ([], [0, expert_num]), op, "this chip has all experts")
    need(quant_mode in (-1, 1) and scale is None and offset is None, op, "quant_mode must be -1 or 1 on this chip")
    need(row_idx_type in (0, 1) and expert_tokens_num_type in (0, 1), op, "types must be 0 or 1 on this chip")
    order_R = expert_idx.flatten().argsort(stable=True)
    rows_RD = x[order_R // expert_idx.shape[1]]
    token_scale = torch.empty(0)
    if quant_mode == 1:
        rows_RD, wide = quantise(rows_RD, INT8)
        token_scale = wide[:, 0]
    count_E = torch.bincount(expert_idx.flatten(), minlength=expert_num)
    counts = count_E if expert_tokens_num_type == 1 else count_E.cumsum(0)
    places = order_R if row_idx_type == 1 else order_R.argsort()
    return rows_RD, places.int(), counts if expert_tokens_num_flag else torch.empty(0, dtype=torch.int64), token_scale


def token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns rows in the order of their experts, and each choice's row among them, int32 [R].

    Source also: ``test_npu_moe_token_permute_and_unpermute.py``, whose device sorts twice.
    """
    op = "npu_moe_token_permute"
    need(tokens.ndim == 2 and tokens.dtype in FLOATS, op, "tokens must be floating [T, D]")
    need(indices.dtype in (torch.int32, torch.int64) and indices.ndim == 2, op, "indices must be integers [T, K]")
    need(len(indices) == len(tokens), op, "indices must have a row for each token")
    need(num_out_tokens is None and not padded_mode, op, "this chip drops no tokens")
    order_R = indices.flatten().argsort(stable=True)
    return tokens[order_R // indices.shape[1]], order_R.argsort().int()


def token_permute_grad_v2(
    grad_permuted_tokens: Tensor, sorted_indices: Tensor, tokens_size_0: int, tokens_dtype: Any, num_topK: int,
    padded_mode: bool = False,
) -> Tensor:  # fmt: skip
    """Returns the gradient of the tokens: the sum over a token's choices."""
    rows_RD = grad_permuted_tokens.float()[sorted_indices.long()]
    out_TD: Tensor = rows_RD.unflatten(0, (tokens_size_0, num_topK)).sum(1).to(grad_permuted_tokens.dtype)
    return out_TD


def token_permute_gradients(
    given: dict[str, Any], outs: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """As in ``derivatives.yaml``."""
    tokens, indices = given["tokens"], given["indices"]
    given_back = (grads[0].contiguous(), outs[1], len(tokens), tokens.dtype, indices.shape[1])
    return {"tokens": torch.ops.npu.npu_moe_token_permute_grad_v2(*given_back)}


def token_unpermute(
    permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """Returns each token's sum of rows times their gates; `sorted_indices` gives each choice's row."""
    op = "npu_moe_token_unpermute"
    need(permuted_tokens.ndim == 2 and permuted_tokens.dtype in FLOATS, op, "rows must be floating [R, D]")
    need(sorted_indices.dtype == torch.int32 and sorted_indices.ndim == 1, op, "sorted_indices must be int32 [R]")
    need(len(sorted_indices) == len(permuted_tokens), op, "sorted_indices must have a place for each row")
    need(not padded_mode, op, "this chip drops no tokens")
    rows = permuted_tokens.float()[sorted_indices.long()]
    if probs is None:
        return rows.to(permuted_tokens.dtype)
    need(probs.dtype == permuted_tokens.dtype, op, "probs must have the rows' dtype")
    need(probs.ndim == 2 and probs.numel() == len(rows), op, "probs must be [T, K]")
    out_TD: Tensor = (rows.unflatten(0, probs.shape) * probs.float()[..., None]).sum(1).to(permuted_tokens.dtype)
    return out_TD


def token_unpermute_grad_v2(
    grad_unpermuted_tokens: Tensor, sorted_indices: Tensor, permuted_tokens_size_0: int, permuted_tokens_dtype: Any,
    probs: Tensor | None = None, padded_mode: bool = False, restore_shape: list[int] | None = None,
    permuted_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of the rows and of the gates."""
    op = "npu_moe_token_unpermute_grad_v2"
    need(probs is not None and permuted_tokens is not None, op, "this chip needs probs and permuted_tokens")
    assert probs is not None and permuted_tokens is not None
    grad_TD, place_R = grad_unpermuted_tokens.float(), sorted_indices.long()
    rows_TKD = permuted_tokens.float()[place_R].unflatten(0, probs.shape)
    dprobs_TK = (rows_TKD * grad_TD[:, None]).sum(-1).to(probs.dtype)
    drows_RD = torch.empty_like(permuted_tokens)
    drows_RD[place_R] = (grad_TD[:, None] * probs.float()[..., None]).flatten(0, 1).to(permuted_tokens.dtype)
    return drows_RD, dprobs_TK


def token_unpermute_gradients(
    given: dict[str, Any], outs: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """As in ``derivatives.yaml``."""
    rows, probs = given["permuted_tokens"], given["probs"]
    found = torch.ops.npu.npu_moe_token_unpermute_grad_v2(
        grads[0].contiguous(), given["sorted_indices"], len(rows), rows.dtype, probs, permuted_tokens=rows
    )
    return dict(zip(("permuted_tokens", "probs"), found, strict=True))
