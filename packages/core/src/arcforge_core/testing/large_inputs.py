"""Calls of every op that are larger than its ordinary cases in one respect: rows, keys, an index, tokens of an expert.

Kernels that cut an index to 16 bits, stop at a tile or forget a remainder are right on small calls.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops.quant import INT4, INT8, quantise
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.attention_inputs import selection
from arcforge_core.testing.fused_inputs import layer_arguments
from arcforge_core.testing.op_case import OpCase, integers, normal

ROWS, KEYS, FAR, FEW = 5_003, 700, 40_009, 300
"""Rows of a norm, keys of a segment, keys of a cache (above 2**15), tokens of a layer."""


def large_case(op: str, seed: int = 0, tokens: int | None = None) -> OpCase:
    """Returns one large call of an op; another seed gives the same shapes.

    Args:
        op: op name.
        seed: of all values.
        tokens: a kernel's own limit of tokens, for layers.
    """
    g = Generator().manual_seed(seed)
    few = min(FEW, tokens or FEW)
    args, sizes = _attention(op, g) or _rows(op, g) or _layer(op, g, few)
    assert set(sizes) == set(SPECS[op].sizes), op
    return OpCase(op, "large", args, (), sizes)


Made = tuple[dict[str, Any], dict[str, int]]


def _rows(op: str, g: Generator) -> Made | None:
    x = normal(g, ROWS, 16)
    heads = normal(g, ROWS, 2, 8)
    whole = integers(g, -127, 128, ROWS, 32).double()
    whole[:, 0] = 127.0
    made: dict[str, Made] = {
        "rms_norm": ({"x": x, "weight": normal(g, 16), "eps": 1e-5}, {"width": 16}),
        "swiglu": ({"gate": x, "up": normal(g, ROWS, 16)}, {"width": 16}),
        "linear": ({"x": x, "weight_NK": normal(g, 8, 16)}, {"inputs": 16, "outputs": 8}),
        "head_linear": ({"x_THK": heads, "weight_HNK": normal(g, 2, 6, 8)}, {"heads": 2}),
        "router_scores": ({"x_TD": x, "weight_ED": normal(g, 6, 16)}, {"width": 16, "experts": 6}),
        "hadamard": ({"x": x}, {"width": 16}),
        "to_records": ({"x": whole}, {"width": 32}),
        "newton_schulz": (
            {"x_BMN": normal(g, 1, 72, 200), "coefficients": [(3.4445, -4.7750, 2.0315)] * 5, "eps": 1e-7},
            {"rows": 72, "columns": 200},
        ),
        "linear_cross_entropy": (
            {
                "x_TD": x,
                "weight_WD": normal(g, 97, 16) * 0.25,
                "target_T": integers(g, 0, 97, ROWS),
                "weight_T": integers(g, 0, 3, ROWS).double(),
            },
            {"width": 16, "vocab": 97},
        ),
    }
    if op == "rope":
        angles_TF = torch.arange(ROWS)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2).double() / 8)
        return {"x_THR": heads, "cos_TF": angles_TF.cos(), "sin_TF": angles_TF.sin()}, {"dim": 8}
    if op == "quant_linear":
        weight, scale_NG = quantise(normal(g, 8, 32), INT8)
        args: dict[str, Any] = {"x": whole, "weight": weight, "scale_NG": scale_NG, "bias_N": None, "rounds": True}
        return args, {"inputs": 32, "outputs": 8, "bits": 8, "groups": 1}
    if op in ("argmax_logprob", "sample"):
        logits_NV = 4 * normal(g, 2, FAR)
        logits_NV[:, -3] = logits_NV.max() + 1  # an index above 2**15 is the answer
        draws = {"temperature_N": torch.ones(2).double(), "seed_N": integers(g, 0, 99, 2), "place_N": torch.arange(2)}
        return {"logits_NV": logits_NV, **(draws if op == "sample" else {})}, {"vocab": FAR}
    return made.get(op)


def _attention(op: str, g: Generator) -> Made | None:
    if op in ("attention_varlen", "attention_decode", "window_attention"):
        queries, keys = ([KEYS], [KEYS]) if op != "attention_decode" else ([2, 1], [KEYS, 4 * KEYS])
        heads = {"heads": 2, "kv_heads": 1, "key_dim": 8, "value_dim": 8}
        ragged = {"cu_query": cumulative(queries), "cu_key": cumulative(keys)}
        window = {"window": 400} if op == "window_attention" else {}
        q, kv = normal(g, sum(queries), 2, 8), [normal(g, sum(keys), 1, 8) for _ in range(2)]
        args = {"q_THK": 2 * q, "k_SGK": kv[0], "v_SGV": kv[1], **ragged, **window, "scale": 8**-0.5}
        return args, heads | window
    if op == "gated_delta_rule":
        shape, key = (FEW, 1), torch.nn.functional.normalize(normal(g, FEW, 1, 8), dim=-1)
        args = {"q_THK": key.flip(0), "k_THK": key, "v_THV": normal(g, *shape, 8)}
        args |= {"g_TH": -0.05 * normal(g, *shape).square(), "beta_TH": normal(g, *shape).sigmoid()}
        args |= {"state_NHKV": normal(g, 1, 1, 8, 8), "cu_query": cumulative([FEW])}
        return {**args, "scale": 8**-0.5}, {"heads": 1, "key_dim": 8, "value_dim": 8}
    far = {"cu_query": cumulative([2]), "cu_key": cumulative([FAR])}
    topk = 200
    if op == "mla_decode":
        args = {"q_THC": normal(g, 2, 2, 16), "kv_SC": normal(g, FAR, 16), **far, "latent_dim": 12, "scale": 1.0}
        return args, {"heads": 2, "key_dim": 16, "latent_dim": 12}
    if op == "mla_layer":
        sizes = {"hidden": 24, "query_latent": 16, "latent": 12, "heads": 2, "nope": 8, "rotary": 4}
        return layer_arguments(g, [2], [FAR], sizes), sizes
    if op == "indexer_topk":
        args = {"q_TID": integers(g, -2, 3, 2, 3, 8).double(), "k_SD": integers(g, -2, 3, FAR, 8).double()}
        args |= {"w_TI": integers(g, 1, 5, 2, 3).double() / 4, **far, "topk": topk}
        k_SD = args["k_SD"]
        assert isinstance(k_SD, Tensor)
        k_SD[-topk // 2 :] *= 8  # half of the best keys are above 2**15
        return args, {"heads": 3, "head_dim": 8, "topk": topk}
    rows_TK = selection(g, [2], [FAR], topk) if op in ("sparse_mla", "selected_attention", "indexer_kl") else Tensor()
    absorbed = {"q_THC": normal(g, 2, 2, 16), "kv_SC": normal(g, FAR, 16)}
    if op == "sparse_mla":
        args = {**absorbed, "indices_TK": rows_TK, **far, "latent_dim": 12, "scale": 0.5}
        return args, {"heads": 2, "key_dim": 16, "latent_dim": 12, "topk": topk}
    if op == "selected_attention":
        args = {"q_THK": normal(g, 2, 2, 8), "k_SGK": normal(g, FAR, 1, 8), "v_SGV": normal(g, FAR, 1, 8)}
        sizes = {"heads": 2, "kv_heads": 1, "key_dim": 8, "value_dim": 8, "topk": topk}
        return {**args, "indices_TK": rows_TK, **far, "scale": 8**-0.5}, sizes
    if op == "indexer_kl":
        args = {**absorbed, "q_TID": normal(g, 2, 2, 8), "k_SD": normal(g, FAR, 8), "w_TI": normal(g, 2, 2)}
        sizes = {"heads": 2, "key_dim": 16, "index_heads": 2, "index_dim": 8, "topk": topk}
        return {**args, "indices_TK": rows_TK, **far, "scale": 0.5}, sizes
    return None


def _layer(op: str, g: Generator, tokens: int) -> Made:
    """A layer of 300 tokens with two of four experts each, or as many as a fused kernel takes."""
    hidden, width, experts = 32, 64, 4
    x_TD, expert_TK = normal(g, tokens, hidden), torch.rand(tokens, experts, generator=g).argsort(-1)[:, :2]
    gate_up, down = normal(g, experts, 2 * width, hidden) / 6, normal(g, experts, hidden, width) / 8
    dense = {n: normal(g, *s) / 6 for n, s in (("gate", (width, hidden)), ("up", (width, hidden)))}
    dense["down"] = normal(g, hidden, width) / 8
    chosen = {"expert_TK": expert_TK, "gate_TK": normal(g, tokens, 2).sigmoid()}
    router = {"router_ED": normal(g, experts, hidden), "bias_E": torch.zeros(experts, dtype=torch.float64)}
    letters = {"gate": "FG", "up": "FG", "down": "DG"}

    def rounded(prefix: str = "") -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, weight in dense.items():
            made[f"{prefix}{name}"], made[f"{prefix}{name}_scale_{letters[name]}"] = quantise(weight, INT8)
        return made

    values, scale = quantise(gate_up, INT4)
    down_values, down_scale = quantise(down, INT4)
    four = {"gate_up": values, "gate_up_scale_EFG": scale, "down": down_values, "down_scale_EDG": down_scale}
    sizes = {"experts": experts, "hidden": hidden, "width": width}
    if op == "moe_experts":
        return {"x_TD": x_TD, "gate_up_EFD": gate_up, "down_EDF": down, **chosen}, sizes
    if op == "quant_experts":
        return {"x_TD": x_TD, **four, **chosen, "rounds": True}, {**sizes, "bits": 4, "groups": 1}
    if op == "mlp":
        weights = {"gate_FD": dense["gate"], "up_FD": dense["up"], "down_DF": dense["down"]}
        return {"x_TD": x_TD, **weights}, {"hidden": hidden, "width": width}
    if op == "quant_mlp":
        return {"x_TD": x_TD, **rounded(), "rounds": True}, {"hidden": hidden, "width": width}
    last = {"chosen": 2, "scale": 2.5}
    if op == "quant_moe":
        args = {"x_TD": x_TD, **router, **four, **rounded("shared_"), **last, "rounds": True}
        return args, {**sizes, "shared": width, "bits": 4, "groups": 1}
    if op == "moe":
        names = {"gate": "shared_gate_FD", "up": "shared_up_FD", "down": "shared_down_DF"}
        shared = {names[name]: weight for name, weight in dense.items()}
        args = {"x_TD": x_TD, **router, "gate_up_EFD": gate_up, "down_EDF": down, **shared, **last}
        return args, {**sizes, "shared": width}
    return _fused(op, g, tokens)


def _fused(op: str, g: Generator, tokens: int) -> Made:
    """The parts around attention: the first of the ordinary cases with more tokens."""
    case = next(c for c in SPECS[op].cases(g) if c.name == "tokens")
    most = math.ceil(tokens / len(next(iter(case.args.values()))))
    per_token = ("x_TD", "q_TJ", "out_THL", "cos_TF", "sin_TF")
    args = {
        name: torch.cat([(1 + 0.01 * n) * value for n in range(most)])[:tokens] if name in per_token else value
        for name, value in case.args.items()
    }
    return args, dict(case.sizes)
