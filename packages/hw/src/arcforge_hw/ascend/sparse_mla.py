"""Absorbed attention to selected keys by ``npu_sparse_flash_attention``, and its gradient.

The operator takes latent and rotated parts apart, and our cache stores them in one row, so a cache is never read in
place: either the selected entries are gathered, each query a segment of its own, or the segments' keys.

Shapes: T query tokens, S keys, H heads, C latent plus rope, K selected keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_core.ops.reference import laid_out
from arcforge_hw.ascend.calls import LATENT, ROTATED, ends, index_list, npu, parts
from arcforge_hw.torch_ops.sparse_mla import key_rows

SELECTED = 8192
"""Most keys that the indexer, and so this operator, is documented for."""


def supports(call: OpCall) -> Verdict:
    """Returns whether the sizes are documented for A2 and A3."""
    if call.dtype != torch.bfloat16:
        return Verdict(False, f"npu_sparse_flash_attention takes half precision, not {call.dtype}")
    heads, entry, latent = (call.sizes.get(n, 0) for n in ("heads", "key_dim", "latent_dim"))
    if (entry, latent) != (LATENT + ROTATED, LATENT):
        wanted = f"entries of {LATENT} + {ROTATED}"
        return Verdict(False, f"npu_sparse_flash_attention takes {wanted}, not {latent} + {entry - latent}")
    if heads.bit_count() != 1 or heads > 128:
        return Verdict(False, f"npu_sparse_flash_attention takes a power of two up to 128 heads, not {heads}")
    return YES


def sparse_mla(
    q_THC: Tensor, kv_SC: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.sparse_mla`."""
    if pages is not None:
        tokens, selected = indices_TK.shape
        if tokens * selected < int(cu_key[-1]):
            rows_TK = key_rows(indices_TK, cu_query, cu_key, pages)
            kv_SC = kv_SC.index_select(0, rows_TK.clamp(min=0).flatten())
            place_K = torch.arange(selected, device=indices_TK.device)
            indices_TK = torch.where(indices_TK < 0, -1, place_K)
            cu_query = torch.arange(tokens + 1)
            cu_key = cu_query * selected
        else:
            kv_SC = laid_out(kv_SC, cu_key, pages)
    return attend(q_THC, kv_SC, indices_TK, cu_query, cu_key, scale, _learns(q_THC, kv_SC))[0]


def _learns(*inputs: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def mla_decode(
    q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.mla_decode`: every visible key is selected."""
    kv_SC = laid_out(kv_SC, cu_key, pages)
    query_N, key_N = cu_query.diff(), cu_key.diff()
    row_T = torch.arange(int(cu_query[-1])) - cu_query[:-1].repeat_interleave(query_N)
    seen_T = (key_N - query_N).repeat_interleave(query_N) + row_T + 1
    key_K = torch.arange(int(key_N.max()))
    indices_TK = torch.where(key_K < seen_T[:, None], key_K, -1).to(q_THC.device)
    return attend(q_THC, kv_SC, indices_TK, cu_query, cu_key, scale, _learns(q_THC, kv_SC))[0]


def decode_limits(
    q_THC: Tensor, kv_SC: Tensor, cu_query: Tensor, cu_key: Tensor, latent_dim: int, scale: float,
    pages: Pages | None = None,
) -> Verdict:  # fmt: skip
    """Returns whether as many keys may be selected as a call has."""
    if (keys := int(cu_key.diff().max())) <= SELECTED:
        return YES
    return Verdict(False, f"{SELECTED} selected keys are documented, not {keys}")


def attend(
    q_THC: Tensor, kv_SC: Tensor, indices_TK: Tensor, cu_query: Tensor, cu_key: Tensor, scale: float, statistics: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns attended latents [T, H, L] and, with `statistics`, each head's largest score and sum of exponentials."""
    query, query_rope = parts(q_THC)
    key, key_rope = parts(kv_SC[:, None])
    out: tuple[Tensor, Tensor, Tensor] = npu("npu_sparse_flash_attention")(
        query, key, key, index_list(indices_TK), scale,
        actual_seq_lengths_query=ends(cu_query, query.device), actual_seq_lengths_kv=ends(cu_key, query.device),
        query_rope=query_rope, key_rope=key_rope, layout_query="TND", layout_kv="TND", sparse_mode=3,
        attention_mode=2, return_softmax_lse=statistics,
    )  # fmt: skip
    return out
