"""In which dtype a CPU multiplies the rows of experts: bfloat16, or float32 after a conversion of rows and weights.

For few rows of each expert torch's bfloat16 products can take longer than the conversion and float32 products together;
without bfloat16 instructions they always do. A measurement on the processor decides
(`arcforge_core.ops.calibration`). Costs of both grow with the weights, so rows of an expert are what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from arcforge_core.ops.calibration import calibrated, fastest, forced, source_of

FIGURE = "fp32_expert_rows"
EXPERTS, CHOSEN, HIDDEN, WIDTH = 16, 2, 256, 128
"""Sizes of the measured experts."""
ROWS = (8, 16, 32, 64, 128)
"""Measured rows of each expert."""
SECONDS, LEAST = 0.1, 8
"""Time and least calls of each number of rows."""
ALWAYS = 1e9
"""The figure where float32 is twice as fast for the most rows."""
LARGEST = 1 << 28
"""Maximum bytes of converted weights."""

Experts = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""The signature of `arcforge_core.ops.reference.moe_experts`."""


def in_fp32(function: Experts) -> Experts:
    """Returns the op on float32 copies of its arguments, with a result of their dtype."""

    def run(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, gate_TK: Tensor) -> Tensor:
        out_TD = function(x_TD.float(), gate_up_EFD.float(), down_EDF.float(), expert_TK, gate_TK.float())
        return out_TD.to(x_TD.dtype)

    return run


def wants_fp32(x_TD: Tensor, gate_up_EFD: Tensor, down_EDF: Tensor, expert_TK: Tensor, function: Experts) -> bool:
    """Returns whether float32 is faster for these rows, which need no gradient.

    Args:
        x_TD, gate_up_EFD, down_EDF, expert_TK: of the op.
        function: the op; measured if this processor has not been yet.
    """
    if x_TD.device.type != "cpu" or x_TD.dtype != torch.bfloat16 or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in (x_TD, gate_up_EFD, down_EDF)):
        return False
    if 4 * (gate_up_EFD.numel() + down_EDF.numel()) > LARGEST:
        return False
    return expert_TK.numel() <= most_rows(function) * len(down_EDF)


def most_rows(function: Experts) -> float:
    """Returns the rows of each expert up to which float32 is faster, from the variable or measured.

    Raises:
        ConfigError: `arcforge_core.ops.calibration.forced`.
    """
    given = forced()
    return given[FIGURE] if FIGURE in given else _measured(function)


@cache
def _measured(function: Experts) -> float:
    return calibrated("experts", [FIGURE], lambda: {FIGURE: measure(function)})[FIGURE]


@torch.no_grad()
def measure(function: Experts) -> float:
    """Measures `most_rows`: up to where float32 is first slower; see `ALWAYS`."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).bfloat16()

    weights = normal(EXPERTS, 2 * WIDTH, HIDDEN), normal(EXPERTS, HIDDEN, WIDTH)
    most = 0.0
    for rows in ROWS:
        tokens = rows * EXPERTS // CHOSEN
        expert_TK = torch.rand(tokens, EXPERTS, generator=draw).topk(CHOSEN).indices  # uneven, as in models
        given = (normal(tokens, HIDDEN), *weights, expert_TK, torch.full((tokens, CHOSEN), 0.5))
        calls = {"bf16": partial(function, *given), "fp32": partial(in_fp32(function), *given)}
        seconds = fastest(calls, SECONDS, LEAST)
        if seconds["fp32"] >= seconds["bf16"]:
            return most
        most = ALWAYS if rows == ROWS[-1] and 2 * seconds["fp32"] < seconds["bf16"] else float(rows)
    return most


def explained(function: Experts) -> str:
    """Returns `most_rows` in words."""
    rows = most_rows(function)
    upto = "always" if rows >= ALWAYS else f"up to {rows:g} rows of an expert" if rows else "never"
    return f"experts in bf16 are multiplied in fp32 {upto} ({source_of(FIGURE)})"
