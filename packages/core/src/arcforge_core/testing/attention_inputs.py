"""Generated calls of the ops of attention; part of `op_inputs`. Shape letters are those of the references."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from arcforge_core.contracts.batch import cumulative
from arcforge_core.testing.op_case import OpCase, integers, normal, paged

SEGMENTS: dict[str, tuple[list[int], list[int]]] = {
    "one token": ([1], [1]),
    "ragged": ([1, 5, 17, 3], [1, 5, 17, 3]),
    "with a past": ([1, 4, 2], [9, 4, 33]),
    "across tiles": ([70, 131], [70, 200]),
}
"""Query and key lengths of each segment."""


def attention_varlen_cases(g: Generator) -> list[OpCase]:
    """Multi-head and grouped attention with value size unlike key size."""
    cases = []
    for name, (queries, keys) in SEGMENTS.items():
        for heads, kv_heads, key_dim, value_dim in ((4, 4, 16, 16), (6, 2, 24, 16)):
            args = {
                "q_THK": normal(g, sum(queries), heads, key_dim),
                "k_SGK": normal(g, sum(keys), kv_heads, key_dim),
                "v_SGV": normal(g, sum(keys), kv_heads, value_dim),
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
    """Windows of one key and of fewer and more keys than a segment, after a whole past and after its last keys only."""
    trimmed = ([1, 4, 2, 70], [5, 8, 6, 74])
    cases = []
    for name, (queries, keys) in {**SEGMENTS, "end of a past": trimmed}.items():
        for heads, kv_heads, window in ((4, 4, 5), (6, 2, 1), (2, 1, 150)):
            if name == "end of a past" and window != 5:
                continue
            args = {
                "q_THK": normal(g, sum(queries), heads, 16),
                "k_SGK": normal(g, sum(keys), kv_heads, 16),
                "v_SGV": normal(g, sum(keys), kv_heads, 12),
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
            "q_THC": normal(g, sum(queries), 4, 32),
            "kv_SC": normal(g, sum(keys), 32),
            "cu_query": cumulative(queries),
            "cu_key": cumulative(keys),
            "latent_dim": 24,
            "scale": 32**-0.5,
        }
        cases.append(
            OpCase("mla_decode", name, args, ("q_THC", "kv_SC"), {"heads": 4, "key_dim": 32, "latent_dim": 24})
        )
    return [*cases, *(paged(case, "kv_SC") for case in cases)]


def indexer_topk_cases(g: Generator) -> list[OpCase]:
    """Small integers, so that scores are exact in every precision: the answer is one, ties and zeros included."""
    cases = []
    for name, (queries, keys) in SEGMENTS.items():
        for use_relu in (True, False):
            args = {
                "q_TID": integers(g, -2, 3, sum(queries), 3, 8).double(),
                "k_SD": integers(g, -2, 3, sum(keys), 8).double(),
                "w_TI": integers(g, -4, 5, sum(queries), 3).double() / 4,
                "cu_query": cumulative(queries),
                "cu_key": cumulative(keys),
                "topk": 6,
                "use_relu": use_relu,
            }
            label = name if use_relu else f"{name}, no ReLU"
            cases.append(OpCase("indexer_topk", label, args, (), {"heads": 3, "head_dim": 8, "topk": 6}))
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
            "q_THC": normal(g, sum(queries), 4, 32),
            "kv_SC": normal(g, sum(keys), 32),
            "indices_TK": selection(g, queries, keys, topk=6),
            "cu_query": cumulative(queries),
            "cu_key": cumulative(keys),
            "latent_dim": 24,
            "scale": 32**-0.5,
        }
        sizes = {"heads": 4, "key_dim": 32, "latent_dim": 24, "topk": 6}
        cases.append(OpCase("sparse_mla", name, args, ("q_THC", "kv_SC"), sizes))
    return [*cases, *(paged(case, "kv_SC") for case in cases)]


def selected_attention_cases(g: Generator) -> list[OpCase]:
    """Up to 6 selected keys a token, heads that share keys."""
    cases = []
    for name, (queries, keys) in SEGMENTS.items():
        args = {
            "q_THK": normal(g, sum(queries), 4, 12),
            "k_SGK": normal(g, sum(keys), 2, 12),
            "v_SGV": normal(g, sum(keys), 2, 20),
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
                "q_THC": normal(g, sum(queries), 3, 20),
                "kv_SC": normal(g, sum(keys), 20),
                "q_TID": normal(g, sum(queries), 2, 12),
                "k_SD": normal(g, sum(keys), 12),
                "w_TI": normal(g, sum(queries), 2) / 2,
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
        ("with a past", [1, 4, 2, 1], 1.0, 1.0, 0.3),
        ("across chunks", [64, 131], 1.0, 1.0, 0.05),
        ("beta zero", [5, 66], 1.0, 0.0, 0.05),
        ("no decay", [66], 1.0, 1.0, 0.0),
        ("strong decay", [66], 1.0, 1.0, 200.0),
    ):
        tokens = sum(lengths)
        args = {
            "q_THK": F.normalize(normal(g, tokens, heads, key_dim), dim=-1),
            "k_THK": F.normalize(normal(g, tokens, heads, key_dim) + 0.5, dim=-1),
            "v_THV": normal(g, tokens, heads, value_dim),
            "g_TH": -decay * normal(g, tokens, heads).square(),
            "beta_TH": beta * normal(g, tokens, heads).sigmoid(),
            "state_NHKV": past * normal(g, len(lengths), heads, key_dim, value_dim),
            "cu_query": cumulative(lengths),
            "scale": key_dim**-0.5,
        }
        sizes = {"heads": heads, "key_dim": key_dim, "value_dim": value_dim}
        cases.append(OpCase("gated_delta_rule", name, args, tuple(args)[:6], sizes))
    return cases
