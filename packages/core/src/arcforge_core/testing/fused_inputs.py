"""Generated calls of the fused ops for few tokens; part of `op_inputs`. Shape letters are those of the references."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from arcforge_core.contracts.batch import Pages, cumulative
from arcforge_core.testing.op_case import OpCase, integers, normal

FUSED_SIZES = {"one token": (1, 32), "tokens": (5, 32), "no whole vectors": (2, 10)}
"""Tokens, and the unit that widths are multiples of: kernels for few tokens read weights in whole vectors."""


def _turns(g: Generator, tokens: int, pairs: int) -> dict[str, Tensor]:
    angle_TF = normal(g, tokens, pairs)
    return {"cos_TF": angle_TF.cos(), "sin_TF": angle_TF.sin()}


def mla_prolog_cases(g: Generator) -> list[OpCase]:
    """Latents of unlike sizes."""
    cases = []
    for name, (tokens, unit) in FUSED_SIZES.items():
        hidden, query, rotary, latent = 3 * unit, 2 * unit, 6, unit
        args = {
            "x_TD": normal(g, tokens, hidden),
            "q_a_QD": normal(g, query, hidden),
            "q_norm_Q": normal(g, query),
            "kv_a_CD": normal(g, latent + rotary, hidden),
            "kv_norm_L": normal(g, latent),
            **_turns(g, tokens, rotary // 2),
            "eps": 1e-5,
        }
        cases.append(OpCase("mla_prolog", name, args, (), {"hidden": hidden, "latent": latent}))
    return cases


def mla_project_cases(g: Generator) -> list[OpCase]:
    """The parts of `mla_prolog_cases` and `mla_absorb_cases`, weights small enough that no part drowns another."""
    cases = []
    for name, (tokens, unit) in FUSED_SIZES.items():
        sizes = {"hidden": 3 * unit, "query_latent": 2 * unit, "latent": unit, "heads": 3, "nope": 12, "rotary": 6}
        cases.append(OpCase("mla_project", name, project_arguments(g, tokens, sizes), (), sizes))
    return cases


def project_arguments(g: Generator, tokens: int, sizes: dict[str, int]) -> dict[str, Any]:
    """Returns arguments of `mla_project`; values of a head have 10 rows."""
    hidden, query, latent, heads = (sizes[name] for name in ("hidden", "query_latent", "latent", "heads"))
    nope, rotary = sizes["nope"], sizes["rotary"]
    return {
        "x_TD": normal(g, tokens, hidden),
        "q_a_QD": normal(g, query, hidden) / hidden**0.5,
        "q_norm_Q": normal(g, query),
        "q_b_JQ": normal(g, heads * (nope + rotary), query) / query**0.5,
        "kv_a_CD": normal(g, latent + rotary, hidden) / hidden**0.5,
        "kv_norm_L": normal(g, latent),
        "kv_b_XL": normal(g, heads * (nope + 10), latent) / nope**0.5,
        **_turns(g, tokens, rotary // 2),
        "eps": 1e-5,
        "heads": heads,
    }


LAYERS = {"one token": ([1], [6]), "tokens": ([3, 2], [7, 5]), "no whole vectors": ([1, 1], [4, 9])}
"""New tokens and all keys of each segment, by the names of `FUSED_SIZES`."""


def mla_layer_cases(g: Generator) -> list[OpCase]:
    """`mla_project_cases` with a past in shuffled pages."""
    cases = []
    for name, (queries, keys) in LAYERS.items():
        unit = FUSED_SIZES[name][1]
        sizes = {"hidden": 3 * unit, "query_latent": 2 * unit, "latent": unit, "heads": 3, "nope": 12, "rotary": 6}
        cases.append(OpCase("mla_layer", name, layer_arguments(g, queries, keys, sizes), (), sizes))
    return cases


def layer_arguments(g: Generator, queries: list[int], keys: list[int], sizes: dict[str, int]) -> dict[str, Any]:
    """Returns arguments of `mla_layer`, whose cache has two pages of 4 rows that no key is in."""
    projected, size, lengths = project_arguments(g, sum(queries), sizes), 4, cumulative(keys)
    counts = [-(-length // size) for length in keys]
    numbers = torch.randperm(sum(counts) + 2, generator=g).split([*counts, 2])
    pages = Pages(torch.nn.utils.rnn.pad_sequence(list(numbers[:-1]), batch_first=True), size, size * (sum(counts) + 2))
    rows = pages.key_rows(lengths).split(keys)
    last = {name: projected.pop(name) for name in ("cos_TF", "sin_TF", "eps", "heads")}
    return {
        **projected,
        "o_DY": normal(g, sizes["hidden"], sizes["heads"] * 10) / 5,
        "cos_TF": last["cos_TF"],
        "sin_TF": last["sin_TF"],
        "cache_RC": normal(g, pages.rows, sizes["latent"] + sizes["rotary"]),
        "slot_T": torch.cat([rows_S[-new:] for rows_S, new in zip(rows, queries, strict=True)]),
        "cu_query": cumulative(queries),
        "cu_key": lengths,
        "pages": pages,
        "eps": last["eps"],
        "heads": last["heads"],
        "scale": (sizes["nope"] + sizes["rotary"]) ** -0.5,
    }


def mla_absorb_cases(g: Generator) -> list[OpCase]:
    """Three heads of unlike parts."""
    cases = []
    for name, (tokens, unit) in FUSED_SIZES.items():
        heads, nope, rotary, value, latent = 3, 12, 6, 10, unit
        args = {
            "q_TJ": normal(g, tokens, heads * (nope + rotary)),
            "kv_b_JL": normal(g, heads * (nope + value), latent),
            **_turns(g, tokens, rotary // 2),
            "heads": heads,
        }
        cases.append(OpCase("mla_absorb", name, args, (), {"heads": heads, "latent": latent}))
    return cases


def mla_epilog_cases(g: Generator) -> list[OpCase]:
    """Values of another size than keys."""
    cases = []
    for name, (tokens, unit) in FUSED_SIZES.items():
        heads, nope, value, latent = 4, 5, unit // 2, unit
        args = {
            "out_THL": normal(g, tokens, heads, latent),
            "kv_b_JL": normal(g, heads * (nope + value), latent),
            "value": value,
        }
        cases.append(OpCase("mla_epilog", name, args, (), {"heads": heads, "latent": latent}))
    return cases


def index_prolog_cases(g: Generator) -> list[OpCase]:
    """Heads of which a part is rotated."""
    cases = []
    for name, (tokens, unit) in FUSED_SIZES.items():
        hidden, heads, width, rotary = 2 * unit, 3, 14, 6
        args = {
            "x_TD": normal(g, tokens, hidden),
            "q_TJ": normal(g, tokens, heads * width),
            "wk_KD": normal(g, width, hidden),
            "norm_K": normal(g, width),
            "norm_bias_K": normal(g, width),
            "weights_ID": normal(g, heads, hidden),
            **_turns(g, tokens, rotary // 2),
            "eps": 1e-6,
        }
        sizes = {"heads": heads, "head_dim": width, "hidden": hidden}
        cases.append(OpCase("index_prolog", name, args, (), sizes))
    return cases


def mlp_cases(g: Generator) -> list[OpCase]:
    """Several widths."""
    cases = []
    for name, (tokens, unit) in FUSED_SIZES.items():
        hidden, width = unit, 3 * unit
        args = {
            "x_TD": normal(g, tokens, hidden),
            "gate_FD": normal(g, width, hidden),
            "up_FD": normal(g, width, hidden),
            "down_DF": normal(g, hidden, width),
        }
        cases.append(OpCase("mlp", name, args, (), {"hidden": hidden, "width": width}))
    return cases


def moe_cases(g: Generator) -> list[OpCase]:
    """A bias that changes the choice, and one that leaves nothing but ties, which go to the first experts."""
    cases = []
    for name, (tokens, unit) in {**FUSED_SIZES, "ties": (3, 32)}.items():
        experts, hidden, width, shared = 7, unit, 2 * unit, unit
        ties = name == "ties"
        args = {
            "x_TD": normal(g, tokens, hidden),
            "router_ED": torch.zeros(experts, hidden, dtype=torch.float64) if ties else normal(g, experts, hidden),
            "bias_E": integers(g, -2, 3, experts).double() * (0.0 if ties else 0.25),
            "gate_up_EFD": normal(g, experts, 2 * width, hidden),
            "down_EDF": normal(g, experts, hidden, width),
            "shared_gate_FD": normal(g, shared, hidden),
            "shared_up_FD": normal(g, shared, hidden),
            "shared_down_DF": normal(g, hidden, shared),
            "chosen": 3,
            "scale": 0.5 + tokens,
        }
        sizes = {"experts": experts, "hidden": hidden, "width": width, "shared": shared}
        cases.append(OpCase("moe", name, args, (), sizes))
    return cases
