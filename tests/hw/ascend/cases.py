"""Calls of the sizes that Ascend's operators are documented for, with few tokens: the kit's own sizes are smaller.

Run in the process of a fake chip only.
"""

import torch

from arcforge_core.contracts.batch import Pages, cumulative
from arcforge_core.testing.attention_inputs import selection
from arcforge_core.testing.op_case import OpCase, integers, normal

HEADS, ENTRY, LATENT, INDEX_HEADS, INDEX, TOPK = 32, 576, 512, 8, 128, 6
QUERIES, KEYS = [3, 5], [9, 5]
"""The first segment has a past."""


def pages_of(case: OpCase, name: str, size: int = 16) -> OpCase:
    """Returns the case with its keys in shuffled pages, NaN between them."""
    cu_key = case.args["cu_key"]
    pages = Pages(torch.tensor([[2], [0]]), size, 4 * size)
    store = case.args[name].new_full((pages.rows, case.args[name].shape[-1]), float("nan"))
    store[pages.key_rows(cu_key)] = case.args[name]
    args = {**case.args, name: store, "pages": pages}
    return OpCase(case.op, "in pages", args, (), case.sizes)


def indexer_topk_case(seed: int) -> OpCase:
    g = torch.Generator().manual_seed(seed)
    args = {
        "q_TID": integers(g, -2, 3, sum(QUERIES), INDEX_HEADS, INDEX).double(),
        "k_SD": integers(g, -2, 3, sum(KEYS), INDEX).double(),
        "w_TI": integers(g, -4, 5, sum(QUERIES), INDEX_HEADS).double() / 4,
        "cu_query": cumulative(QUERIES), "cu_key": cumulative(KEYS), "topk": TOPK, "use_relu": True,
    }  # fmt: skip
    sizes = {"heads": INDEX_HEADS, "head_dim": INDEX, "topk": TOPK}
    return OpCase("indexer_topk", "segments", args, (), sizes)


def sparse_mla_case(seed: int, topk: int = TOPK) -> OpCase:
    g = torch.Generator().manual_seed(seed)
    args = {
        "q_THC": normal(g, sum(QUERIES), HEADS, ENTRY), "kv_SC": normal(g, sum(KEYS), ENTRY),
        "indices_TK": selection(g, QUERIES, KEYS, topk), "cu_query": cumulative(QUERIES),
        "cu_key": cumulative(KEYS), "latent_dim": LATENT, "scale": ENTRY**-0.5,
    }  # fmt: skip
    sizes = {"heads": HEADS, "key_dim": ENTRY, "latent_dim": LATENT, "topk": topk}
    return OpCase("sparse_mla", "segments", args, ("q_THC", "kv_SC"), sizes)


def attention_varlen_case(g: torch.Generator) -> OpCase:
    args = {
        "q_THK": normal(g, sum(QUERIES), 4, 24), "k_SGK": normal(g, sum(KEYS), 2, 24),
        "v_SGV": normal(g, sum(KEYS), 2, 16), "cu_query": cumulative(QUERIES), "cu_key": cumulative(KEYS), "scale": 0.2,
    }  # fmt: skip
    sizes = {"heads": 4, "kv_heads": 2, "key_dim": 24, "value_dim": 16}
    return OpCase("attention_varlen", "segments", args, ("q_THK", "k_SGK", "v_SGV"), sizes)


def indexer_kl_case(seed: int) -> OpCase:
    g = torch.Generator().manual_seed(seed)
    args = {
        "q_THC": normal(g, sum(QUERIES), HEADS, ENTRY), "kv_SC": normal(g, sum(KEYS), ENTRY),
        "q_TID": normal(g, sum(QUERIES), INDEX_HEADS, INDEX) / 4, "k_SD": normal(g, sum(KEYS), INDEX) / 4,
        "w_TI": normal(g, sum(QUERIES), INDEX_HEADS) / 2, "indices_TK": selection(g, QUERIES, KEYS, TOPK),
        "cu_query": cumulative(QUERIES), "cu_key": cumulative(KEYS), "scale": ENTRY**-0.5, "use_relu": True,
    }  # fmt: skip
    sizes = {"heads": HEADS, "key_dim": ENTRY, "index_heads": INDEX_HEADS, "index_dim": INDEX, "topk": TOPK}
    return OpCase("indexer_kl", "segments", args, ("q_TID", "k_SD", "w_TI"), sizes)


def cases(seed: int) -> list[OpCase]:
    topk, sparse, wide = indexer_topk_case(seed), sparse_mla_case(seed), sparse_mla_case(seed, topk=1)
    paged = [pages_of(topk, "k_SD"), pages_of(sparse, "kv_SC"), pages_of(wide, "kv_SC")]
    return [topk, sparse, indexer_kl_case(seed), *paged]
