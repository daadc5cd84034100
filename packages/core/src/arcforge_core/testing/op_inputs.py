"""Generated calls of every op, on which kernels are compared with the float64 reference.

The cases of each op are those that break kernels: ragged segments, a past, one token, lengths across tile borders,
empty experts, exact ties, zeros. Shape letters are those of `arcforge_core.ops.reference`.
"""

from __future__ import annotations

import torch
from torch import Generator

from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.op_case import OpCase, integers, normal


def rms_norm_cases(g: Generator) -> list[OpCase]:
    """Norms over several widths, with a row of zeros and with many leading axes."""
    shapes = {"rows": (7, 64), "heads": (5, 3, 48), "one row": (1, 8), "odd width": (3, 33)}
    cases = []
    for name, shape in shapes.items():
        args = {"x": normal(g, *shape), "weight": normal(g, shape[-1]), "eps": 1e-5}
        cases.append(OpCase("rms_norm", name, args, ("x", "weight"), {"width": shape[-1]}))
    zeros = {"x": torch.cat([normal(g, 2, 16), torch.zeros(1, 16)]), "weight": normal(g, 16), "eps": 1e-5}
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
        args = {"x_THR": normal(g, tokens, heads, size), "cos_TF": angles_TF.cos(), "sin_TF": angles_TF.sin()}
        cases.append(OpCase("rope", name, args, ("x_THR",), {"dim": size}))
    return cases


def swiglu_cases(g: Generator) -> list[OpCase]:
    """Ordinary, large and zero gates."""
    scales = {"ordinary": 1.0, "large": 30.0, "zero": 0.0}
    return [
        OpCase(
            "swiglu", name, {"gate": scale * normal(g, 9, 40), "up": normal(g, 9, 40)}, ("gate", "up"), {"width": 40}
        )
        for name, scale in scales.items()
    ]


def linear_cases(g: Generator) -> list[OpCase]:
    """One row, several leading axes, odd sizes, with and without a bias."""
    cases = []
    for name, shape, outputs in (("one row", (1, 32), 16), ("odd sizes", (37, 5), 7), ("heads", (4, 3, 16), 8)):
        args = {"x": normal(g, *shape), "weight_NK": normal(g, outputs, shape[-1]), "bias_N": normal(g, outputs)}
        sizes = {"inputs": shape[-1], "outputs": outputs}
        cases.append(OpCase("linear", name, args, ("x", "weight_NK", "bias_N"), sizes))
    without = {"x": normal(g, 6, 8), "weight_NK": normal(g, 4, 8)}
    return [*cases, OpCase("linear", "no bias", without, ("x", "weight_NK"), {"inputs": 8, "outputs": 4})]


def head_linear_cases(g: Generator) -> list[OpCase]:
    """One token, several, one head."""
    return [
        OpCase(
            "head_linear",
            name,
            {"x_THK": normal(g, tokens, heads, 12), "weight_HNK": normal(g, heads, 9, 12)},
            ("x_THK", "weight_HNK"),
            {"heads": heads},
        )
        for name, tokens, heads in (("one token", 1, 3), ("tokens", 33, 3), ("one head", 5, 1))
    ]


def router_scores_cases(g: Generator) -> list[OpCase]:
    """Ordinary scores, and saturated ones beside ordinary ones: gradients of saturated scores alone are rounding."""
    scales = {"one token": [1.0], "tokens": [0.3] * 40, "saturated": [40.0, 1.0] * 5}
    return [
        OpCase(
            "router_scores",
            name,
            {"x_TD": torch.tensor(scale_T)[:, None] * normal(g, len(scale_T), 24), "weight_ED": normal(g, 6, 24)},
            ("x_TD", "weight_ED"),
            {"width": 24, "experts": 6},
        )
        for name, scale_T in scales.items()
    ]


def moe_experts_cases(g: Generator) -> list[OpCase]:
    """Spread tokens, experts without tokens, all tokens on the same experts, one token on all experts.

    Of one token on two experts the gates would have two gradients: too few for one to be large next to its rounding.
    """
    experts, hidden, width, topk = 6, 24, 16, 2
    chosen = {
        "spread": torch.stack([torch.randperm(experts, generator=g)[:topk] for _ in range(40)]),
        "empty experts": torch.tensor([[1, 4], [4, 1]] * 4),
        "one pair of experts": torch.tensor([[5, 0]] * 33),
        "one token": torch.tensor([[2, 3, 0, 5, 1, 4]]),
    }
    cases = []
    for name, expert_TK in chosen.items():
        gate_TK = normal(g, *expert_TK.shape).sigmoid()
        args = {
            "x_TD": normal(g, len(expert_TK), hidden),
            "gate_up_EFD": normal(g, experts, 2 * width, hidden) * hidden**-0.5,
            "down_EDF": normal(g, experts, hidden, width) * width**-0.5,
            "expert_TK": expert_TK,
            "gate_TK": gate_TK,
        }
        sizes = {"experts": experts, "hidden": hidden, "width": width}
        cases.append(OpCase("moe_experts", name, args, ("x_TD", "gate_up_EFD", "down_EDF", "gate_TK"), sizes))
    return cases


def linear_cross_entropy_cases(g: Generator) -> list[OpCase]:
    """More tokens than a chunk, tokens of weight zero, one token."""
    cases = []
    for name, tokens, weight in (("many tokens", 300, 1.0), ("all weights zero", 5, 0.0), ("one token", 1, 1.0)):
        weight_T = weight * (integers(g, 0, 3, tokens) if tokens > 1 else torch.ones(1)).double()
        args = {
            "x_TD": normal(g, tokens, 16),
            "weight_WD": normal(g, 97, 16) * 0.25,
            "target_T": integers(g, 0, 97, tokens),
            "weight_T": weight_T,
        }
        cases.append(OpCase("linear_cross_entropy", name, args, ("x_TD", "weight_WD"), {"width": 16, "vocab": 97}))
    return cases


def newton_schulz_cases(g: Generator) -> list[OpCase]:
    """Wide, tall, square and zero matrices; the quintic of Muon (spec 2), five steps."""
    steps = [(3.4445, -4.7750, 2.0315)] * 5
    matrices = {
        "wide": normal(g, 2, 8, 20),
        "tall": normal(g, 1, 20, 8),
        "square": normal(g, 3, 12, 12),
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
    """Powers of two, 12 and 20 times such, a single column, one large value among small ones."""
    cases = []
    shapes = {"power of two": (5, 64), "one column": (3, 1), "heads": (4, 3, 16), "12": (2, 96), "20": (3, 40)}
    for name, shape in shapes.items():
        cases.append(OpCase("hadamard", name, {"x": normal(g, *shape)}, ("x",), {"width": shape[-1]}))
    outlier = normal(g, 2, 32)
    outlier[:, 7] = 100.0
    return [*cases, OpCase("hadamard", "outlier", {"x": outlier}, ("x",), {"width": 32})]


def argmax_logprob_cases(g: Generator) -> list[OpCase]:
    """Equal maxima in pieces far apart, one token, a row that is nearly certain."""
    rows_NV = 4 * normal(g, 3, 1100)
    rows_NV[0, [7, 600]] = rows_NV[0].max() + 1
    rows_NV[1, 1099] = 90.0
    return [
        OpCase("argmax_logprob", name, {"logits_NV": rows_NV[:, :vocab]}, (), {"vocab": vocab})
        for name, vocab in (("pieces", 1100), ("few", 5), ("one token", 1))
    ]


def sample_cases(g: Generator) -> list[OpCase]:
    """Temperatures from nearly greedy to nearly even, tokens that a grammar forbids, one token."""
    rows_NV = 4 * normal(g, 6, 1100)
    rows_NV[:, [3, 700]] = -float("inf")
    args = {
        "temperature_N": torch.tensor([1e-30, 0.125, 1.0, 1.0, 4.0, 1e3], dtype=torch.float64),
        "seed_N": torch.tensor([0, 1, 2, 2**63 - 1, 4, 5]),
        "place_N": torch.tensor([0, 7, 0, 2**40, 1, 2]),
    }
    return [
        OpCase("sample", name, {"logits_NV": rows_NV[:, :vocab], **args}, (), {"vocab": vocab})
        for name, vocab in (("pieces", 1100), ("few", 5), ("one token", 1))
    ]


def op_cases(op: str, seed: int = 0) -> list[OpCase]:
    """Returns the cases of an op; the same seed gives the same numbers, another one the same shapes.

    Raises:
        KeyError: core has no such op.
    """
    return SPECS[op].cases(Generator().manual_seed(seed))
