"""Generated calls of every op: the inputs on which a kernel is held against the float64 reference.

Each op gets what breaks kernels: ragged segments, a past, one token, lengths across tile borders, empty
experts, exact ties, zeros. Shape letters are those of `arcforge_core.ops.reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from arcforge_core.contracts.batch import cumulative
from arcforge_core.testing.op_case import OpCase, paged
from arcforge_core.testing.quant_inputs import (
    quant_experts_cases,
    quant_linear_cases,
    quant_mlp_cases,
    quant_moe_cases,
    to_records_cases,
)


def _normal(g: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def _integers(g: Generator, low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=g)


SEGMENTS: dict[str, tuple[list[int], list[int]]] = {
    "one token": ([1], [1]),
    "ragged": ([1, 5, 17, 3], [1, 5, 17, 3]),
    "behind a past": ([1, 4, 2], [9, 4, 33]),
    "across tiles": ([70, 131], [70, 200]),
}
"""Query and key lengths of each segment."""


def rms_norm_cases(g: Generator) -> list[OpCase]:
    """Norms over several widths, with a row of zeros and with many leading axes."""
    shapes = {"rows": (7, 64), "heads": (5, 3, 48), "one row": (1, 8), "odd width": (3, 33)}
    cases = []
    for name, shape in shapes.items():
        args = {"x": _normal(g, *shape), "weight": _normal(g, shape[-1]), "eps": 1e-5}
        cases.append(OpCase("rms_norm", name, args, ("x", "weight"), {"width": shape[-1]}))
    zeros = {"x": torch.cat([_normal(g, 2, 16), torch.zeros(1, 16)]), "weight": _normal(g, 16), "eps": 1e-5}
    return [*cases, OpCase("rms_norm", "row of zeros", zeros, ("x", "weight"), {"width": 16})]


def rope_cases(g: Generator) -> list[OpCase]:
    """Rotations at near and far positions."""
    cases = []
    for name, tokens, heads, size, first in (
        ("near", 6, 3, 16, 0),
        ("far", 5, 1, 8, 100_000),
        ("one token", 1, 2, 64, 3),
    ):
        frequencies_F = 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles_TF = torch.arange(first, first + tokens)[:, None] * frequencies_F
        args = {"x_THR": _normal(g, tokens, heads, size), "cos_TF": angles_TF.cos(), "sin_TF": angles_TF.sin()}
        cases.append(OpCase("rope", name, args, ("x_THR",), {"dim": size}))
    return cases


def swiglu_cases(g: Generator) -> list[OpCase]:
    """Ordinary, large and zero gates."""
    scales = {"ordinary": 1.0, "large": 30.0, "zero": 0.0}
    return [
        OpCase(
            "swiglu", name, {"gate": scale * _normal(g, 9, 40), "up": _normal(g, 9, 40)}, ("gate", "up"), {"width": 40}
        )
        for name, scale in scales.items()
    ]


def linear_cases(g: Generator) -> list[OpCase]:
    """One row, several leading axes, odd sizes, with and without a bias."""
    cases = []
    for name, shape, outputs in (("one row", (1, 32), 16), ("odd sizes", (37, 5), 7), ("heads", (4, 3, 16), 8)):
        args = {"x": _normal(g, *shape), "weight_NK": _normal(g, outputs, shape[-1]), "bias_N": _normal(g, outputs)}
        sizes = {"inputs": shape[-1], "outputs": outputs}
        cases.append(OpCase("linear", name, args, ("x", "weight_NK", "bias_N"), sizes))
    without = {"x": _normal(g, 6, 8), "weight_NK": _normal(g, 4, 8)}
    return [*cases, OpCase("linear", "no bias", without, ("x", "weight_NK"), {"inputs": 8, "outputs": 4})]


def head_linear_cases(g: Generator) -> list[OpCase]:
    """One token, several, one head."""
    return [
        OpCase(
            "head_linear",
            name,
            {"x_THK": _normal(g, tokens, heads, 12), "weight_HNK": _normal(g, heads, 9, 12)},
            ("x_THK", "weight_HNK"),
            {"heads": heads},
        )
        for name, tokens, heads in (("one token", 1, 3), ("tokens", 33, 3), ("one head", 5, 1))
    ]


def router_scores_cases(g: Generator) -> list[OpCase]:
    """Ordinary scores, and saturated ones."""
    return [
        OpCase(
            "router_scores",
            name,
            {"x_TD": scale * _normal(g, tokens, 24), "weight_ED": _normal(g, 6, 24)},
            ("x_TD", "weight_ED"),
            {"width": 24, "experts": 6},
        )
        for name, tokens, scale in (("one token", 1, 1.0), ("tokens", 40, 0.3), ("saturated", 9, 40.0))
    ]


def attention_varlen_cases(g: Generator) -> list[OpCase]:
    """Multi-head and grouped attention with value size unlike key size."""
    cases = []
    for name, (queries, keys) in SEGMENTS.items():
        for heads, kv_heads, key_dim, value_dim in ((4, 4, 16, 16), (6, 2, 24, 16)):
            args = {
                "q_THK": _normal(g, sum(queries), heads, key_dim),
                "k_SGK": _normal(g, sum(keys), kv_heads, key_dim),
                "v_SGV": _normal(g, sum(keys), kv_heads, value_dim),
                "cu_query": cumulative(queries),
                "cu_key": cumulative(keys),
                "scale": key_dim**-0.5,
            }
            sizes = {"heads": heads, "kv_heads": kv_heads, "key_dim": key_dim, "value_dim": value_dim}
            cases.append(
                OpCase(
                    "attention_varlen", f"{name}, {heads}/{kv_heads} heads", args, ("q_THK", "k_SGK", "v_SGV"), sizes
                )
            )
    return cases


def window_attention_cases(g: Generator) -> list[OpCase]:
    """Windows of one key, of less and of more than a segment, behind a whole past and behind its end alone."""
    trimmed = ([1, 4, 2, 70], [5, 8, 6, 74])
    cases = []
    for name, (queries, keys) in {**SEGMENTS, "end of a past": trimmed}.items():
        for heads, kv_heads, window in ((4, 4, 5), (6, 2, 1), (2, 1, 150)):
            if name == "end of a past" and window != 5:
                continue
            args = {
                "q_THK": _normal(g, sum(queries), heads, 16),
                "k_SGK": _normal(g, sum(keys), kv_heads, 16),
                "v_SGV": _normal(g, sum(keys), kv_heads, 12),
                "cu_query": cumulative(queries),
                "cu_key": cumulative(keys),
                "window": window,
                "scale": 0.25,
            }
            sizes = {"heads": heads, "kv_heads": kv_heads, "key_dim": 16, "value_dim": 12, "window": window}
            cases.append(
                OpCase("window_attention", f"{name}, window {window}", args, ("q_THK", "k_SGK", "v_SGV"), sizes)
            )
    return cases


def attention_decode_cases(g: Generator) -> list[OpCase]:
    """Those of `attention_varlen`, whose heads share keys and whose values have another size, and the same in pages."""
    cases = [replace(case, op="attention_decode") for case in attention_varlen_cases(g)]
    return [*cases, *(paged(case, "k_SGK", "v_SGV") for case in cases)]


def mla_decode_cases(g: Generator) -> list[OpCase]:
    """Absorbed attention over shared entries of 24 latent and 8 rope values."""
    cases = []
    for name, (queries, keys) in SEGMENTS.items():
        args = {
            "q_THC": _normal(g, sum(queries), 4, 32),
            "kv_SC": _normal(g, sum(keys), 32),
            "cu_query": cumulative(queries),
            "cu_key": cumulative(keys),
            "latent_dim": 24,
            "scale": 32**-0.5,
        }
        cases.append(
            OpCase("mla_decode", name, args, ("q_THC", "kv_SC"), {"heads": 4, "latent_dim": 24, "rope_dim": 8})
        )
    return [*cases, *(paged(case, "kv_SC") for case in cases)]


def indexer_topk_cases(g: Generator) -> list[OpCase]:
    """Small integers, so that scores are exact in every precision: the answer is one, ties and zeros included."""
    cases = []
    for name, (queries, keys) in SEGMENTS.items():
        for use_relu in (True, False):
            args = {
                "q_TID": _integers(g, -2, 3, sum(queries), 3, 8).double(),
                "k_SD": _integers(g, -2, 3, sum(keys), 8).double(),
                "w_TI": _integers(g, -4, 5, sum(queries), 3).double() / 4,
                "cu_query": cumulative(queries),
                "cu_key": cumulative(keys),
                "topk": 6,
                "use_relu": use_relu,
            }
            label = name if use_relu else f"{name}, no ReLU"
            cases.append(OpCase("indexer_topk", label, args, (), {"heads": 3, "dim": 8, "topk": 6}))
    scale = torch.ones(1).view(torch.int8)  # records whose integers are the keys
    records = [
        replace(case, name=f"{case.name}, records", args={**case.args, "k_SD": _records(case.args["k_SD"], scale)})
        for case in cases
    ]
    return [*cases, *records, *(paged(case, "k_SD") for case in cases)]


def _records(k_SD: Tensor, scale: Tensor) -> Tensor:
    return torch.cat((k_SD.to(torch.int8), scale.expand(len(k_SD), -1)), dim=-1)


def sparse_mla_cases(g: Generator) -> list[OpCase]:
    """Up to 6 selected keys a token; early tokens see fewer, the rest is -1."""
    cases = []
    for name, (queries, keys) in SEGMENTS.items():
        args = {
            "q_THC": _normal(g, sum(queries), 4, 32),
            "kv_SC": _normal(g, sum(keys), 32),
            "indices_TK": selection(g, queries, keys, topk=6),
            "cu_query": cumulative(queries),
            "cu_key": cumulative(keys),
            "latent_dim": 24,
            "scale": 32**-0.5,
        }
        sizes = {"heads": 4, "latent_dim": 24, "rope_dim": 8, "topk": 6}
        cases.append(OpCase("sparse_mla", name, args, ("q_THC", "kv_SC"), sizes))
    return [*cases, *(paged(case, "kv_SC") for case in cases)]


def selected_attention_cases(g: Generator) -> list[OpCase]:
    """Up to 6 selected keys a token, heads that share keys."""
    cases = []
    for name, (queries, keys) in SEGMENTS.items():
        args = {
            "q_THK": _normal(g, sum(queries), 4, 12),
            "k_SGK": _normal(g, sum(keys), 2, 12),
            "v_SGV": _normal(g, sum(keys), 2, 20),
            "indices_TK": selection(g, queries, keys, topk=6),
            "cu_query": cumulative(queries),
            "cu_key": cumulative(keys),
            "scale": 12**-0.5,
        }
        sizes = {"heads": 4, "kv_heads": 2, "key_dim": 12, "value_dim": 20, "topk": 6}
        cases.append(OpCase("selected_attention", name, args, ("q_THK", "k_SGK", "v_SGV"), sizes))
    return cases


def indexer_kl_cases(g: Generator) -> list[OpCase]:
    """Up to 6 selected keys a token; index weights of both signs, so that a ReLU cuts and scores fall below zero."""
    cases = []
    for name, (queries, keys) in SEGMENTS.items():
        for use_relu in (True, False):
            args = {
                "q_THC": _normal(g, sum(queries), 3, 20),
                "kv_SC": _normal(g, sum(keys), 20),
                "q_TID": _normal(g, sum(queries), 2, 12),
                "k_SD": _normal(g, sum(keys), 12),
                "w_TI": _normal(g, sum(queries), 2) / 2,
                "indices_TK": selection(g, queries, keys, topk=6),
                "cu_query": cumulative(queries),
                "cu_key": cumulative(keys),
                "scale": 20**-0.5,
                "use_relu": use_relu,
            }
            label = name if use_relu else f"{name}, no ReLU"
            sizes = {"heads": 3, "key_dim": 20, "index_heads": 2, "index_dim": 12, "topk": 6}
            cases.append(OpCase("indexer_kl", label, args, ("q_TID", "k_SD", "w_TI"), sizes))
    return cases


def selection(g: Generator, queries: list[int], keys: list[int], topk: int) -> Tensor:
    """Returns keys for each token as a selection gives them: distinct, ascending, then -1."""
    rows = []
    for query, key in zip(queries, keys, strict=True):
        for visible in range(key - query + 1, key + 1):
            row = torch.full((topk,), -1, dtype=torch.int64)
            chosen = torch.randperm(visible, generator=g)[:topk].sort().values
            row[: len(chosen)] = chosen
            rows.append(row)
    return torch.stack(rows)


def gated_delta_rule_cases(g: Generator) -> list[OpCase]:
    """Keys of length 1; fresh states and others, lengths around whole chunks, and gates that shut or do nothing."""
    heads, key_dim, value_dim = 3, 12, 20
    cases = []
    for name, lengths, past, beta, decay in (
        ("one token", [1], 0.0, 1.0, 0.3),
        ("ragged", [1, 5, 17, 3], 0.0, 1.0, 0.3),
        ("behind a past", [1, 4, 2, 1], 1.0, 1.0, 0.3),
        ("across chunks", [64, 131], 1.0, 1.0, 0.05),
        ("beta zero", [5, 66], 1.0, 0.0, 0.05),
        ("no decay", [66], 1.0, 1.0, 0.0),
        ("strong decay", [66], 1.0, 1.0, 200.0),
    ):
        tokens = sum(lengths)
        args = {
            "q_THK": F.normalize(_normal(g, tokens, heads, key_dim), dim=-1),
            "k_THK": F.normalize(_normal(g, tokens, heads, key_dim) + 0.5, dim=-1),
            "v_THV": _normal(g, tokens, heads, value_dim),
            "g_TH": -decay * _normal(g, tokens, heads).square(),
            "beta_TH": beta * _normal(g, tokens, heads).sigmoid(),
            "state_NHKV": past * _normal(g, len(lengths), heads, key_dim, value_dim),
            "cu_query": cumulative(lengths),
            "scale": key_dim**-0.5,
        }
        sizes = {"heads": heads, "key_dim": key_dim, "value_dim": value_dim}
        cases.append(OpCase("gated_delta_rule", name, args, tuple(args)[:6], sizes))
    return cases


def moe_experts_cases(g: Generator) -> list[OpCase]:
    """Spread tokens, experts without any, all tokens on the same experts, one token."""
    experts, hidden, width, topk = 6, 24, 16, 2
    chosen = {
        "spread": torch.stack([torch.randperm(experts, generator=g)[:topk] for _ in range(40)]),
        "empty experts": torch.tensor([[1, 4], [4, 1], [1, 4]]),
        "one pair of experts": torch.tensor([[5, 0]] * 33),
        "one token": torch.tensor([[2, 3]]),
    }
    cases = []
    for name, expert_TK in chosen.items():
        gate_TK = _normal(g, len(expert_TK), topk).sigmoid()
        args = {
            "x_TD": _normal(g, len(expert_TK), hidden),
            "gate_up_EFD": _normal(g, experts, 2 * width, hidden) * hidden**-0.5,
            "down_EDF": _normal(g, experts, hidden, width) * width**-0.5,
            "expert_TK": expert_TK,
            "gate_TK": gate_TK,
        }
        sizes = {"experts": experts, "hidden": hidden, "width": width, "topk": topk}
        cases.append(OpCase("moe_experts", name, args, ("x_TD", "gate_up_EFD", "down_EDF", "gate_TK"), sizes))
    return cases


def linear_cross_entropy_cases(g: Generator) -> list[OpCase]:
    """More tokens than a chunk, tokens of weight zero, one token."""
    cases = []
    for name, tokens, weight in (("many tokens", 300, 1.0), ("all weights zero", 5, 0.0), ("one token", 1, 1.0)):
        weight_T = weight * (_integers(g, 0, 3, tokens) if tokens > 1 else torch.ones(1)).double()
        args = {
            "x_TD": _normal(g, tokens, 16),
            "weight_WD": _normal(g, 97, 16) * 0.25,
            "target_T": _integers(g, 0, 97, tokens),
            "weight_T": weight_T,
        }
        cases.append(OpCase("linear_cross_entropy", name, args, ("x_TD", "weight_WD"), {"hidden": 16, "vocab": 97}))
    return cases


def newton_schulz_cases(g: Generator) -> list[OpCase]:
    """Wide, tall, square and zero matrices; the quintic of Muon (spec 2), five steps."""
    steps = [(3.4445, -4.7750, 2.0315)] * 5
    matrices = {
        "wide": _normal(g, 2, 8, 20),
        "tall": _normal(g, 1, 20, 8),
        "square": _normal(g, 3, 12, 12),
        "zero": torch.zeros(1, 4, 6, dtype=torch.float64),
    }
    return [
        OpCase(
            "newton_schulz",
            name,
            {"x_BMN": x_BMN, "coefficients": steps, "eps": 1e-7},
            (),
            {"rows": x_BMN.shape[1], "columns": x_BMN.shape[2]},
        )
        for name, x_BMN in matrices.items()
    ]


def hadamard_cases(g: Generator) -> list[OpCase]:
    """Powers of two, 12 and 20 times one, a single column, one large value among small ones."""
    cases = []
    shapes = {"power of two": (5, 64), "one column": (3, 1), "heads": (4, 3, 16), "12": (2, 96), "20": (3, 40)}
    for name, shape in shapes.items():
        cases.append(OpCase("hadamard", name, {"x": _normal(g, *shape)}, ("x",), {"width": shape[-1]}))
    outlier = _normal(g, 2, 32)
    outlier[:, 7] = 100.0
    return [*cases, OpCase("hadamard", "outlier", {"x": outlier}, ("x",), {"width": 32})]


def _turns(g: Generator, tokens: int, pairs: int) -> dict[str, Tensor]:
    angle_TF = _normal(g, tokens, pairs)
    return {"cos_TF": angle_TF.cos(), "sin_TF": angle_TF.sin()}


FUSED_SIZES = {"one token": (1, 32), "tokens": (5, 32), "no whole vectors": (2, 10)}
"""Tokens, and the unit that widths are multiples of: kernels for few tokens read weights in whole vectors."""


def mla_prolog_cases(g: Generator) -> list[OpCase]:
    """Latents of unlike sizes."""
    cases = []
    for name, (tokens, unit) in FUSED_SIZES.items():
        hidden, query, rotary, latent = 3 * unit, 2 * unit, 6, unit
        args = {
            "x_TD": _normal(g, tokens, hidden),
            "q_a_QD": _normal(g, query, hidden),
            "q_norm_Q": _normal(g, query),
            "kv_a_CD": _normal(g, latent + rotary, hidden),
            "kv_norm_L": _normal(g, latent),
            **_turns(g, tokens, rotary // 2),
            "eps": 1e-5,
        }
        cases.append(OpCase("mla_prolog", name, args, (), {"hidden": hidden, "latent": latent}))
    return cases


def mla_absorb_cases(g: Generator) -> list[OpCase]:
    """Three heads of unlike parts."""
    cases = []
    for name, (tokens, unit) in FUSED_SIZES.items():
        heads, nope, rotary, value, latent = 3, 12, 6, 10, unit
        args = {
            "q_TJ": _normal(g, tokens, heads * (nope + rotary)),
            "kv_b_JL": _normal(g, heads * (nope + value), latent),
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
            "out_THL": _normal(g, tokens, heads, latent),
            "kv_b_JL": _normal(g, heads * (nope + value), latent),
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
            "x_TD": _normal(g, tokens, hidden),
            "q_TJ": _normal(g, tokens, heads * width),
            "wk_KD": _normal(g, width, hidden),
            "norm_K": _normal(g, width),
            "norm_bias_K": _normal(g, width),
            "weights_ID": _normal(g, heads, hidden),
            **_turns(g, tokens, rotary // 2),
            "eps": 1e-6,
        }
        sizes = {"heads": heads, "head_dim": width, "hidden": hidden}
        cases.append(OpCase("index_prolog", name, args, (), sizes))
    return cases


def likeliest_cases(g: Generator) -> list[OpCase]:
    """Equal maxima in pieces far apart, one token, a row that is nearly certain."""
    rows_NV = 4 * _normal(g, 3, 1100)
    rows_NV[0, [7, 600]] = rows_NV[0].max() + 1
    rows_NV[1, 1099] = 90.0
    return [
        OpCase("likeliest", name, {"logits_NV": rows_NV[:, :vocab]}, (), {"vocab": vocab})
        for name, vocab in (("pieces", 1100), ("few", 5), ("one token", 1))
    ]


def race_cases(g: Generator) -> list[OpCase]:
    """Temperatures from nearly greedy to nearly even, tokens that a grammar forbids, one token."""
    rows_NV = 4 * _normal(g, 6, 1100)
    rows_NV[:, [3, 700]] = -float("inf")
    args = {
        "temperature_N": torch.tensor([1e-30, 0.125, 1.0, 1.0, 4.0, 1e3], dtype=torch.float64),
        "seed_N": torch.tensor([0, 1, 2, 2**63 - 1, 4, 5]),
        "place_N": torch.tensor([0, 7, 0, 2**40, 1, 2]),
    }
    return [
        OpCase("race", name, {"logits_NV": rows_NV[:, :vocab], **args}, (), {"vocab": vocab})
        for name, vocab in (("pieces", 1100), ("few", 5), ("one token", 1))
    ]


def mlp_cases(g: Generator) -> list[OpCase]:
    """Several widths."""
    cases = []
    for name, (tokens, unit) in FUSED_SIZES.items():
        hidden, width = unit, 3 * unit
        args = {
            "x_TD": _normal(g, tokens, hidden),
            "gate_FD": _normal(g, width, hidden),
            "up_FD": _normal(g, width, hidden),
            "down_DF": _normal(g, hidden, width),
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
            "x_TD": _normal(g, tokens, hidden),
            "router_ED": torch.zeros(experts, hidden, dtype=torch.float64) if ties else _normal(g, experts, hidden),
            "bias_E": _integers(g, -2, 3, experts).double() * (0.0 if ties else 0.25),
            "gate_up_EFD": _normal(g, experts, 2 * width, hidden),
            "down_EDF": _normal(g, experts, hidden, width),
            "shared_gate_FD": _normal(g, shared, hidden),
            "shared_up_FD": _normal(g, shared, hidden),
            "shared_down_DF": _normal(g, hidden, shared),
            "chosen": 3,
            "scale": 0.5 + tokens,
        }
        sizes = {"experts": experts, "hidden": hidden, "width": width, "shared": shared}
        cases.append(OpCase("moe", name, args, (), sizes))
    return cases


GENERATORS: dict[str, Callable[[Generator], list[OpCase]]] = {
    "rms_norm": rms_norm_cases,
    "rope": rope_cases,
    "linear": linear_cases,
    "head_linear": head_linear_cases,
    "swiglu": swiglu_cases,
    "attention_varlen": attention_varlen_cases,
    "window_attention": window_attention_cases,
    "attention_decode": attention_decode_cases,
    "mla_decode": mla_decode_cases,
    "indexer_topk": indexer_topk_cases,
    "sparse_mla": sparse_mla_cases,
    "selected_attention": selected_attention_cases,
    "indexer_kl": indexer_kl_cases,
    "gated_delta_rule": gated_delta_rule_cases,
    "router_scores": router_scores_cases,
    "moe_experts": moe_experts_cases,
    "linear_cross_entropy": linear_cross_entropy_cases,
    "newton_schulz": newton_schulz_cases,
    "hadamard": hadamard_cases,
    "to_records": to_records_cases,
    "quant_linear": quant_linear_cases,
    "quant_experts": quant_experts_cases,
    "mla_prolog": mla_prolog_cases,
    "mla_absorb": mla_absorb_cases,
    "mla_epilog": mla_epilog_cases,
    "index_prolog": index_prolog_cases,
    "mlp": mlp_cases,
    "likeliest": likeliest_cases,
    "race": race_cases,
    "quant_mlp": quant_mlp_cases,
    "quant_moe": quant_moe_cases,
    "moe": moe_cases,
}


def op_cases(op: str, seed: int = 0) -> list[OpCase]:
    """Returns the cases of an op; the same seed gives the same numbers.

    Raises:
        KeyError: the op has no generator.
    """
    return GENERATORS[op](Generator().manual_seed(seed))
