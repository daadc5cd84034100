"""Generated calls of the ops with quantised weights; part of `op_inputs`. Shape letters are those of the references."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from arcforge_core.ops.quant import INT4, INT4_GROUP_32, INT8, Format, quantise
from arcforge_core.testing.op_case import OpCase, normal

KINDS = {"8 bits": (INT8, True), "4 bits": (INT4, True), "groups": (INT4_GROUP_32, False), "4 bits wide": (INT4, False)}
"""Formats of weights, and whether activations are rounded."""

SMALL = 2.0**-27
"""Factor of small inputs: int8 has no floor of its scales above the smallest normal number."""


def _weight(g: Generator, name: str, form: Format, *shape: int) -> dict[str, Tensor]:
    values, scale = quantise(normal(g, *shape), form)
    letters = "EFG" if name == "gate_up" else "EDG" if len(shape) == 3 else "DG" if name == "down" else "FG"
    return {name: values, f"{name}_scale_{letters}": scale}


def quant_linear_cases(g: Generator) -> list[OpCase]:
    """Eight and four bits; rounded, unrounded, small activations; one row and many, leading axes, odd sizes, zeros."""
    cases = []
    for name, shape, outputs, (form, rounds) in (
        ("8 bits", (9, 32), 24, (INT8, True)),
        ("4 bits", (9, 32), 24, (INT4, True)),
        ("one row", (1, 16), 8, (INT4, True)),
        ("odd sizes", (3, 5, 7), 3, (INT8, True)),
        ("part of a step", (2, 3, 200), 51, (INT8, True)),
        ("halves of a step", (5, 200), 51, (INT4, True)),
        ("zeros", (4, 8), 5, (INT8, True)),
        ("groups", (6, 224), 51, (INT4_GROUP_32, False)),
        ("groups, many rows", (40, 96), 24, (INT4_GROUP_32, False)),
        ("large groups", (1, 384), 9, (Format(4, 128), False)),
        ("small groups", (3, 24), 9, (Format(4, 8), False)),
        ("wide eight bits", (3, 24), 9, (INT8, False)),
        ("wide four bits", (3, 96), 9, (INT4, False)),
        ("small activations", (3, 64), 9, (INT8, True)),
        ("between integers", (6, 64), 9, (INT8, True)),
    ):
        weight, scale_NG = quantise(normal(g, outputs, shape[-1]), form)
        x = torch.zeros(shape, dtype=torch.float64)
        if not rounds:
            x = normal(g, *shape)
        elif name != "zeros":  # integers whose largest is 127
            x = torch.randint(-127, 128, shape, generator=g).double()
            x[..., 0] = 127.0
            x *= SMALL if name == "small activations" else 1.0
        if name == "between integers":  # the scale is 1, so that every precision rounds to the same integers
            x[..., 1:] *= torch.rand(x[..., 1:].shape, generator=g, dtype=torch.float64)
        args = {"x": x, "weight": weight, "scale_NG": scale_NG, "bias_N": normal(g, outputs), "rounds": rounds}
        sizes = {"inputs": shape[-1], "outputs": outputs, "bits": form.bits, "groups": scale_NG.shape[1]}
        cases.append(OpCase("quant_linear", name, args, (), sizes))
    return cases


def quant_mlp_cases(g: Generator) -> list[OpCase]:
    """Each kind of weight, one token and several."""
    cases = []
    for name, (form, rounds) in KINDS.items():
        for tokens, hidden, width in ((1, 64, 96), (6, 96, 160)):
            args = {"x_TD": normal(g, tokens, hidden)}
            for part, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
                args |= _weight(g, part, form, *shape)
            args["rounds"] = rounds  # type: ignore[assignment]
            sizes = {"hidden": hidden, "width": width}
            cases.append(OpCase("quant_mlp", f"{name}, {tokens} tokens", args, (), sizes))
    return cases


def quant_experts_cases(g: Generator) -> list[OpCase]:
    """Each kind of weight; fewer choices than experts and more, experts without tokens."""
    cases = []
    for name, (form, rounds) in KINDS.items():
        for tokens, experts in ((2, 9), (7, 5)):
            hidden, width = 64, 96
            expert_TK = torch.stack([torch.randperm(experts - 1, generator=g)[:3] for _ in range(tokens)])
            args = {
                "x_TD": normal(g, tokens, hidden),
                **_weight(g, "gate_up", form, experts, 2 * width, hidden),
                **_weight(g, "down", form, experts, hidden, width),
                "expert_TK": expert_TK,
                "gate_TK": torch.rand(tokens, 3, generator=g, dtype=torch.float64),
                "rounds": rounds,
            }
            formats = {"bits": form.bits, "groups": hidden // (form.group or hidden)}
            sizes = {"experts": experts, "hidden": hidden, "width": width, **formats}
            cases.append(OpCase("quant_experts", f"{name}, {tokens} tokens", args, (), sizes))
    return cases


def quant_moe_cases(g: Generator) -> list[OpCase]:
    """Each kind of weight, a shared expert of another width, a bias that changes the choice."""
    cases = []
    for name, (form, rounds) in KINDS.items():
        for tokens, experts in ((1, 9), (6, 5)):
            hidden, width, shared = 64, 96, 160
            args = {
                "x_TD": normal(g, tokens, hidden),
                "router_ED": normal(g, experts, hidden),
                "bias_E": torch.randint(-2, 3, (experts,), generator=g).double() * 0.25,
                **_weight(g, "gate_up", form, experts, 2 * width, hidden),
                **_weight(g, "down", form, experts, hidden, width),
            }
            eight = INT8 if rounds else form  # W4A8 has four bits only in routed experts
            for part, shape in (("gate", (shared, hidden)), ("up", (shared, hidden)), ("down", (hidden, shared))):
                made = _weight(g, part, eight, *shape)
                args |= {f"shared_{key}": value for key, value in made.items()}
            args |= {"chosen": 3, "scale": 0.5 + tokens, "rounds": rounds}  # type: ignore[dict-item]
            sizes = {"experts": experts, "hidden": hidden, "width": width, "shared": shared, "bits": form.bits}
            sizes["groups"] = hidden // (form.group or hidden)
            cases.append(OpCase("quant_moe", f"{name}, {tokens} tokens", args, (), sizes))
    return cases


def to_records_cases(g: Generator) -> list[OpCase]:
    """Integers with maximum 127, which every precision rounds alike; leading axes, rows of zeros, small values."""
    cases = []
    shapes = {"rows": (5, 64), "leading axes": (2, 3, 10), "one value": (1, 1), "zeros": (3, 16), "small": (3, 16)}
    for name, shape in shapes.items():
        x = torch.randint(-127, 128, shape, generator=g).double() * (name != "zeros")
        if name != "zeros":
            x[..., 0] = 127.0
            x *= SMALL if name == "small" else 1.0
        cases.append(OpCase("to_records", name, {"x": x}, (), {"width": shape[-1]}))
    return cases
