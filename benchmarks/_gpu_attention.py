"""Timed calls of the Triton kernels of sparse attention, beside their peers, at GLM-5's sizes.

Selected keys are drawn at random among the visible ones: neighbouring queries of a trained indexer share more.

Shapes: T query tokens, S keys, H heads, C entry, L latent, I index heads, D index head size, K selected keys,
B sequences that decode one token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import _gpu_flashmla as flashmla
from _gpu_cases import OWN, Case, normal, size
from _gpu_clock import Job, backward_alone, compiled, device, with_gradients
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference
from arcforge_hw.torch_ops import indexer_kl as torch_kl
from arcforge_hw.torch_ops import indexer_topk as torch_topk
from arcforge_hw.torch_ops import sparse_mla as torch_sparse


def select(tokens: int, keys: int, topk: int) -> Tensor:
    """Returns int64 [T, K]: random visible keys of the last `tokens` positions, ascending, padded with -1."""
    score_TS = torch.rand(tokens, keys, device=device())
    visible_T1 = torch.arange(keys - tokens, keys, device=device())[:, None] + 1
    score_TS.masked_fill_(torch.arange(keys, device=device()) >= visible_T1, -1.0)
    best = score_TS.topk(topk, dim=1)
    chosen_TK = torch.where(best.values < 0, keys, best.indices).sort(1).values
    return torch.where(chosen_TK == keys, -1, chosen_TK)


def gathered(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent: int, scale: float) -> Tensor:
    """Attention to gathered entries in plain operators."""
    kv_TKC = F.embedding(rows_TK, kv_SC)
    prob_THK = (torch.bmm(q_THC, kv_TKC.mT) * scale).softmax(-1, dtype=torch.float32).to(q_THC.dtype)
    return torch.bmm(prob_THK, kv_TKC[..., :latent])


def by_sdpa(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent: int, scale: float) -> Tensor:
    """The same with torch's SDPA, a query's heads as its rows."""
    kv_T1KC = F.embedding(rows_TK, kv_SC)[:, None]
    return F.scaled_dot_product_attention(q_THC[:, None], kv_T1KC, kv_T1KC[..., :latent], scale=scale)[:, 0]


def by_flex(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent: int, scale: float) -> Job:
    """The same with FlexAttention and a mask of selected keys; blocks without any are skipped, and random ones have."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tokens, keys = len(q_THC), len(kv_SC)
    chosen_TS = torch.zeros(tokens, keys, dtype=torch.bool, device=device()).scatter_(1, rows_TK, True)
    mask = create_block_mask(lambda b, h, t, s: chosen_TS[t, s], 1, 1, tokens, keys, device=device())
    run = compiled(flex_attention)
    q_1HTC, kv_11SC = q_THC.transpose(0, 1)[None], kv_SC[None, None]
    given = {"block_mask": mask, "scale": scale, "enable_gqa": True}
    return lambda: run(q_1HTC, kv_11SC, kv_11SC[..., :latent], **given)[0].transpose(0, 1)


def sparse_mla(quick: bool, backward: bool) -> Case:
    """Attention of a chunk of a long prompt to the selected entries."""
    from arcforge_hw.cuda.sparse_mla import sparse_mla as ours

    whole = (2048 if backward else 4096, 32768, 64, 512, 64, 2048)
    tokens, keys, heads, latent, rotary, topk = size(whole, (3, 12, 2, 16, 8, 6), quick)
    width, scale = latent + rotary, 256**-0.5
    leaves = normal(tokens, heads, width), normal(keys, width)
    rows_TK = select(tokens, keys, topk)
    lengths = cumulative([tokens]), cumulative([keys])

    def job(fn: Callable[..., Tensor], *rest: Any) -> Job:
        return backward_alone(fn, leaves, rest) if backward else torch.no_grad()(lambda: fn(*leaves, *rest))

    own = (rows_TK, *lengths, latent, scale)
    plain = (rows_TK, latent, scale)
    peers = {
        f"{OWN} torch": lambda: job(torch_sparse.sparse_mla, *own),
        "eager": lambda: job(gathered, *plain),
        "sdpa": lambda: job(by_sdpa, *plain),
        "compile": lambda: job(compiled(gathered), *plain),
    }
    if not backward:
        peers["FlashMLA"] = lambda: flashmla.sparse_prefill(*leaves, rows_TK, latent, scale)
        peers["flex_attention"] = lambda: by_flex(*leaves, rows_TK, latent, scale)
    products = 3 * width + 2 * latent if backward else width + latent
    return Case(
        f"{tokens} queries, {keys} keys, {heads} heads of {latent}+{rotary}, top-k {topk}",
        job(ours, *own),
        peers,
        flops=2.0 * tokens * heads * topk * products,
        bytes=(2.0 if backward else 1.0)
        * leaves[0].element_size()
        * (tokens * heads * (width + latent) + keys * width),
    )


def decode_plain(q_BHC: Tensor, kv_BSC: Tensor, latent: int, scale: float) -> Tensor:
    """Absorbed attention of one token of each sequence in plain operators."""
    prob_BHS = (torch.bmm(q_BHC, kv_BSC.mT) * scale).softmax(-1, dtype=torch.float32).to(q_BHC.dtype)
    return torch.bmm(prob_BHS, kv_BSC[..., :latent])


def mla_decode(quick: bool, whole: tuple[int, int]) -> Case:
    """One new token of each sequence over its whole cache."""
    from arcforge_hw.cuda.mla_decode import mla_decode as ours

    batch, keys, heads, latent, rotary = size((*whole, 64, 512, 64), (2, 64, 2, 16, 8), quick)
    width, scale = latent + rotary, 256**-0.5
    q_BHC, kv_BSC = normal(batch, heads, width), normal(batch, keys, width)
    lengths = cumulative([1] * batch), cumulative([keys] * batch)

    def sdpa() -> Tensor:
        kv_B1SC = kv_BSC[:, None]
        return F.scaled_dot_product_attention(q_BHC[:, None], kv_B1SC, kv_B1SC[..., :latent], scale=scale)[:, 0]

    def compiled_job() -> Job:
        fn = compiled(decode_plain)
        return torch.no_grad()(lambda: fn(q_BHC, kv_BSC, latent, scale))

    return Case(
        f"{batch} sequences of {keys} keys, {heads} heads of {latent}+{rotary}",
        torch.no_grad()(lambda: ours(q_BHC, kv_BSC.flatten(0, 1), *lengths, latent, scale)),
        {
            "FlashMLA": lambda: flashmla.dense_decode(q_BHC, kv_BSC, latent, scale),
            "eager": lambda: torch.no_grad()(lambda: decode_plain(q_BHC, kv_BSC, latent, scale)),
            "sdpa": lambda: torch.no_grad()(sdpa),
            "compile": compiled_job,
        },
        flops=2.0 * batch * heads * keys * (width + latent),
        bytes=float(kv_BSC.nbytes),
    )


def indexer_topk(quick: bool, whole: tuple[int, int, int]) -> Case:
    """Selection for a whole prompt, or for one new token of each of several sequences."""
    from arcforge_hw.cuda.indexer_topk import indexer_topk as ours

    batch, tokens, keys = size(whole, (min(whole[0], 2), min(whole[1], 5), 9), quick)
    heads, width, topk = size((32, 128, 2048), (2, 16, 4), quick)
    q_TID, k_SD = normal(batch * tokens, heads, width), normal(batch * keys, width)
    w_TI = torch.rand(batch * tokens, heads, device=device())
    given = q_TID, k_SD, w_TI, cumulative([tokens] * batch), cumulative([keys] * batch), topk
    hidden_TS = torch.arange(keys, device=device()) > torch.arange(keys - tokens, keys, device=device())[:, None]

    def batched(q_TID: Tensor, k_SD: Tensor, w_TI: Tensor) -> Tensor:
        q_BTID, k_BSD, w_BTI = (x.unflatten(0, (batch, -1)) for x in (q_TID, k_SD, w_TI))
        dot_BTIS = torch.einsum("btid,bsd->btis", q_BTID, k_BSD).relu()
        score_BTS = (dot_BTIS * w_BTI[..., None]).sum(2, dtype=torch.float32).masked_fill(hidden_TS, float("-inf"))
        best = score_BTS.topk(topk, dim=-1)
        chosen = torch.where(best.values == float("-inf"), keys, best.indices).sort(-1).values
        return torch.where(chosen == keys, -1, chosen).flatten(0, 1)

    def compiled_job() -> Job:
        fn = compiled(batched)
        return torch.no_grad()(lambda: fn(q_TID, k_SD, w_TI))

    pairs = batch * (tokens * (keys - tokens) + tokens * (tokens + 1) / 2)
    return Case(
        f"{batch} x {tokens} queries, {keys} keys, {heads} heads of {width}, top-k {topk}",
        lambda: ours(*given),
        {
            f"{OWN} torch": lambda: lambda: torch_topk.indexer_topk(*given),
            "eager": lambda: torch.no_grad()(lambda: batched(q_TID, k_SD, w_TI)),
            "compile": compiled_job,
        },
        flops=2.0 * pairs * heads * width,
        bytes=float(k_SD.nbytes + 8 * batch * tokens * topk),
    )


def indexer_kl(quick: bool, gradients: bool) -> Case:
    """The indexer's loss over selected keys, without and with its gradients."""
    from arcforge_hw.cuda.indexer_kl import indexer_kl as ours

    tokens, keys, heads, entry, topk = size((2048, 8192, 64, 576, 2048), (3, 12, 2, 24, 6), quick)
    index_heads, index_width = size((32, 128), (2, 16), quick)
    leaves = normal(tokens, index_heads, index_width), normal(keys, index_width)
    leaves = *leaves, torch.rand(tokens, index_heads, device=device()) * 0.02
    attention = normal(tokens, heads, entry), normal(keys, entry)
    rest = select(tokens, keys, topk), cumulative([tokens]), cumulative([keys]), entry**-0.5

    def job(fn: Callable[..., Tensor]) -> Job:
        def whole(*leaves: Tensor) -> Tensor:
            return fn(*attention, *leaves, *rest)

        return with_gradients(whole, leaves) if gradients else torch.no_grad()(lambda: whole(*leaves))

    scored = 2.0 * tokens * topk * index_heads * index_width
    return Case(
        f"{tokens} queries, {keys} keys, {heads} heads of {entry}, {index_heads} of {index_width}, top-k {topk}",
        job(ours),
        {
            f"{OWN} torch": lambda: job(torch_kl.indexer_kl),
            "eager": lambda: job(reference.indexer_kl),
            "compile": lambda: job(compiled(reference.indexer_kl)),
        },
        flops=2.0 * tokens * topk * heads * entry + (3.0 if gradients else 1.0) * scored,
        tolerance=5e-2,
    )


CASES: dict[str, Callable[[bool], Case]] = {
    "sparse_mla": lambda quick: sparse_mla(quick, False),
    "sparse_mla backward": lambda quick: sparse_mla(quick, True),
    "mla_decode 32 x 8k": lambda quick: mla_decode(quick, (32, 8192)),
    "mla_decode 1 x 64k": lambda quick: mla_decode(quick, (1, 65536)),
    "indexer_topk prompt": lambda quick: indexer_topk(quick, (1, 8192, 8192)),
    "indexer_topk decode": lambda quick: indexer_topk(quick, (32, 1, 32768)),
    "indexer_kl": lambda quick: indexer_kl(quick, False),
    "indexer_kl gradients": lambda quick: indexer_kl(quick, True),
}
"""Makers of the cases."""
