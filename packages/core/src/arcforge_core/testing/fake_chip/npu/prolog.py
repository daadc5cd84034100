"""``npu_mla_prolog_v3``: MLA before attention, with the cache written in place. See `layouts` for the source.

The weights of matrix products are demanded contiguous; their storage format FRACTAL_NZ cannot be seen here.

Shapes: T tokens, D hidden, Q query latent, N heads, L latent (512), R rotated part (64), H a
head's part without rotation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.testing.fake_chip.npu.attention import HEADS, LATENT, ROTATED
from arcforge_core.testing.fake_chip.npu.layouts import contiguous
from arcforge_core.testing.fake_chip.npu.rows import _turned, rms_norm
from arcforge_core.testing.fake_chip.vendor import need

HIDDEN = (1024, 2048, 3072, 4096, 5120, 6144, 7168, 7680, 8192)
"""Hidden sizes."""
QUERY_LATENTS, PARTS = (1536, 2048), (128, 192)
"""Query latents and parts without rotation; earlier documents have the first of each alone."""


def mla_prolog_v3(
    token_x: Tensor, weight_dq: Tensor, weight_uq_qr: Tensor, weight_uk: Tensor, weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor, rmsnorm_gamma_ckv: Tensor, rope_sin: Tensor, rope_cos: Tensor, kv_cache: Tensor,
    kr_cache: Tensor, *, cache_index: Tensor | None = None, rmsnorm_epsilon_cq: float = 1e-5,
    rmsnorm_epsilon_ckv: float = 1e-5, cache_mode: str = "PA_BSND", query_norm_flag: bool = False,
    weight_quant_mode: int = 0, kv_cache_quant_mode: int = 0, query_quant_mode: int = 0, qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0, **others: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Writes the entries of all tokens; returns absorbed queries [T, N, L], rotated parts [T, N, R] and more.

    The fourth result is the normalised query latent. The rotated parts come out as two halves, the even places of
    a pair first.
    """
    op = "npu_mla_prolog_v3"
    weights = {"weight_dq": weight_dq, "weight_uq_qr": weight_uq_qr, "weight_uk": weight_uk,
               "weight_dkv_kr": weight_dkv_kr}  # fmt: skip
    given = (token_x, *weights.values(), rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin, rope_cos, kv_cache, kr_cache)
    need(all(x.dtype == torch.bfloat16 for x in given), op, "all must be bfloat16 without quantisation")
    need(weight_quant_mode == kv_cache_quant_mode == query_quant_mode == 0, op, "this chip has no quantised prologue")
    need(not any(x is not None for x in others.values() if isinstance(x, Tensor)), op, "this chip takes no scales")
    contiguous(
        op, token_x=token_x, kv_cache=kv_cache, kr_cache=kr_cache, rope_sin=rope_sin, rope_cos=rope_cos, **weights
    )
    hidden, latent = weight_dq.shape
    heads, part = weight_uk.shape[:2]
    need(token_x.ndim == 2 and token_x.shape[1] == hidden and hidden in HIDDEN, op, f"hidden {hidden} not of {HIDDEN}")
    need(latent in QUERY_LATENTS, op, f"query latent {latent} must be of {QUERY_LATENTS}")
    need(part in PARTS, op, f"part without rotation {part} must be of {PARTS}")
    need(heads in HEADS and weight_uk.shape[2] == LATENT, op, f"weight_uk must be [N, H, {LATENT}]")
    need(weight_uq_qr.shape == (latent, heads * (part + ROTATED)), op, "weight_uq_qr must be [Q, N * (H + R)]")
    need(weight_dkv_kr.shape == (hidden, LATENT + ROTATED), op, "weight_dkv_kr must be [D, L + R]")
    need(rope_sin.shape == rope_cos.shape == (len(token_x), ROTATED), op, "tables must be [T, R]")
    need(cache_mode == "PA_BSND" and kv_cache.ndim == kr_cache.ndim == 4, op, "this chip has cache_mode=PA_BSND only")
    need(kv_cache.shape[1] % 16 == 0 and kv_cache.shape[2:] == (1, LATENT), op, "kv_cache [blocks, block, 1, L]")
    need(kr_cache.shape == (*kv_cache.shape[:3], ROTATED), op, "kr_cache [blocks, block, 1, R]")
    if cache_index is None:
        need(False, op, "cache_index is required for PA_BSND")
        raise AssertionError
    need(cache_index.dtype == torch.int64 and cache_index.shape == (len(token_x),), op, "cache_index must be int64 [T]")
    q_TQ = rms_norm(token_x @ weight_dq, rmsnorm_gamma_cq, rmsnorm_epsilon_cq)[0]
    q_TNK = ((q_TQ @ weight_uq_qr) * qc_qr_scale).unflatten(-1, (heads, part + ROTATED))
    query = torch.einsum("tnh,nhl->tnl", q_TNK[..., :part], weight_uk)
    kv_TL, kr_TR = (token_x @ weight_dkv_kr).split((LATENT, ROTATED), -1)
    row_T = cache_index
    kv_cache.view(-1, LATENT)[row_T] = (
        rms_norm(kv_TL.contiguous(), rmsnorm_gamma_ckv, rmsnorm_epsilon_ckv)[0] * kc_scale
    )
    kr_cache.view(-1, ROTATED)[row_T] = _halves(kr_TR, rope_cos, rope_sin)
    rotated = _halves(q_TNK[..., part:], rope_cos[:, None], rope_sin[:, None])
    none = token_x.new_empty(0)
    return query, rotated, none.float(), q_TQ if query_norm_flag else none, none.float()


def _halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    parts = torch.cat((x[..., 0::2], x[..., 1::2]), -1).float()
    return (parts * cos.float() + _turned(parts, "half") * sin.float()).to(x.dtype)
