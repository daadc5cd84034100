"""Calls at the sizes of GLM-5's attention with fewer heads and tokens, for kernels that refuse other cases.

Vendors' operators are often written for one model's sizes: latents of 512, rotated parts of 64, index heads of 128.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages, cumulative
from arcforge_core.testing.attention_inputs import selection
from arcforge_core.testing.fused_inputs import project_arguments
from arcforge_core.testing.op_case import OpCase, integers, normal

HEADS, ENTRY, LATENT, INDEX_HEADS, INDEX, TOPK, PAGE = 32, 576, 512, 32, 128, 6, 16
QUERIES, KEYS = [3, 5], [9, 5]
"""The first segment has a past."""


def model_cases(op: str, seed: int) -> list[OpCase]:
    """Returns calls of an op at a model's sizes; none for ops whose kernels take any."""
    g, lengths = torch.Generator().manual_seed(seed), {"cu_query": cumulative(QUERIES), "cu_key": cumulative(KEYS)}
    tokens, keys = sum(QUERIES), sum(KEYS)
    if op == "indexer_topk":
        scores = {  # integers, so that the answer is exact in every precision
            "q_TID": integers(g, -2, 3, tokens, INDEX_HEADS, INDEX).double(),
            "k_SD": integers(g, -2, 3, keys, INDEX).double(),
            "w_TI": integers(g, -4, 5, tokens, INDEX_HEADS).double() / 4,
        }
        sizes = {"heads": INDEX_HEADS, "head_dim": INDEX, "topk": TOPK}
        case = OpCase(op, "a model's sizes", {**scores, **lengths, "topk": TOPK, "use_relu": True}, (), sizes)
        return [case, _paged(case, "k_SD")]
    if op == "mla_project":  # DeepSeek-V3.2's latents
        sizes = {
            "hidden": 1024,
            "query_latent": 1536,
            "latent": LATENT,
            "heads": 2,
            "nope": 128,
            "rotary": ENTRY - LATENT,
        }
        return [OpCase(op, "a model's sizes", project_arguments(g, tokens, sizes), (), sizes)]
    attention: dict[str, Tensor] = {"q_THC": normal(g, tokens, HEADS, ENTRY), "kv_SC": normal(g, keys, ENTRY)}
    sizes = {"heads": HEADS, "key_dim": ENTRY, "latent_dim": LATENT}
    rest = {**lengths, "latent_dim": LATENT, "scale": ENTRY**-0.5}
    if op == "mla_decode":
        case = OpCase(op, "a model's sizes", {**attention, **rest}, ("q_THC", "kv_SC"), sizes)
        return [case, _paged(case, "kv_SC")]
    if op == "sparse_mla":
        cases = []
        for topk in (TOPK, 1):
            args = {**attention, "indices_TK": selection(g, QUERIES, KEYS, topk), **rest}
            name = f"a model's sizes, {topk} of the keys"
            cases.append(OpCase(op, name, args, ("q_THC", "kv_SC"), {**sizes, "topk": topk}))
        return [*cases, *(_paged(case, "kv_SC") for case in cases)]
    if op == "indexer_kl":
        index = {
            "q_TID": normal(g, tokens, INDEX_HEADS, INDEX) / 4,
            "k_SD": normal(g, keys, INDEX) / 4,
            "w_TI": normal(g, tokens, INDEX_HEADS) / 2,
            "indices_TK": selection(g, QUERIES, KEYS, TOPK),
        }
        args = {**attention, **index, **lengths, "scale": ENTRY**-0.5, "use_relu": True}
        sizes = {"heads": HEADS, "key_dim": ENTRY, "index_heads": INDEX_HEADS, "index_dim": INDEX, "topk": TOPK}
        return [OpCase(op, "a model's sizes", args, ("q_TID", "k_SD", "w_TI"), sizes)]
    return []


def _paged(case: OpCase, keys: str) -> OpCase:
    """Returns the case with its keys in shuffled pages, NaN between them; without gradients."""
    pages, cu_key = Pages(torch.tensor([[2], [0]]), PAGE, 4 * PAGE), case.args["cu_key"]
    store = case.args[keys].new_full((pages.rows, case.args[keys].shape[-1]), float("nan"))
    store[pages.key_rows(cu_key)] = case.args[keys]
    return replace(case, name=f"{case.name}, in pages", args={**case.args, keys: store, "pages": pages}, grad=())
