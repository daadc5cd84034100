"""msModelSlim's smoothing factors: flex smooth and flex AWQ, which equal that tool's (`tests/hw/quantization`).

Both search exponents on a grid of 0.05 for the least square error of the rounded product; the later of two equal ones
wins. Flex smooth takes ``a^alpha / w^beta`` of the largest activations and weights; it searches alpha with beta = 1 -
alpha, and then beta, with int8 on both sides whatever the recipe. Flex AWQ tries ``a^alpha`` of the largest activations
with the recipe's own rounding, and then applies the exponent found to their mean sizes.

Shapes: T tokens, K channels, N outputs of a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from arcforge_core.ops.quant import INT8, Quantised, dequantise, quantise

LEAST = 1e-5
"""Smallest weight and factor, and smallest activation: msModelSlim tries no exponent if a channel has none at all."""
STEPS = 20
"""Exponents between 0 and 1."""
EXPERTS_UP, UNSMOOTHED = "mlp.experts.up", "post_attention_layernorm"

Matrix = tuple[Tensor, Tensor, Callable[[Tensor], Quantised]]
"""A matrix [N, K], its inputs [T, K], and how the recipe rounds it."""


def at_place(smoothing: str, place: str) -> str:
    """Returns the rule for a place of a layer.

    ``flex`` is msModelSlim's recipe for GLM-5: flex AWQ between the matrices of routed experts, flex smooth elsewhere,
    and nothing at the norm before the MLP.
    """
    if smoothing != "flex":
        return smoothing
    if place == UNSMOOTHED:
        return "none"
    return "flex_awq" if place == EXPERTS_UP else "flex_smooth"


def flex_smooth(matrices: Sequence[Matrix], tokens_TK: Tensor, groups: int, repeats: int) -> Tensor:
    """Returns the factors [K / repeats] of flex smooth; heads that share a value head get the mean of theirs.

    Args:
        matrices: with the tokens on which exponents are tried.
        tokens_TK: all their inputs, which decide the sizes of channels.
        groups, repeats: see `arcforge_hw.quantization.smoothing.search`.
    """
    size_K = tokens_TK.abs().amax(0).clamp(min=LEAST)
    weight_K = _largest_weight(matrices)

    def factors(alpha: float, beta: float) -> Tensor:
        return size_K**alpha * weight_K ** (-beta)

    def error(alpha: float, beta: float) -> float:
        return _error(matrices, factors(alpha, beta), True, lambda weight_NK, _: quantise(weight_NK, INT8))

    alpha, least = _best((step / STEPS, error(step / STEPS, 1 - step / STEPS)) for step in range(STEPS + 1))
    start = (1 - alpha, least)
    beta, _ = _best((start, *((step / STEPS, error(alpha, step / STEPS)) for step in range(STEPS + 1))))
    return factors(alpha, beta).clamp(min=LEAST).view(groups, repeats, -1).mean(1).flatten()


def flex_awq(matrices: Sequence[Matrix], tokens_TK: Tensor, rounds: bool, groups: int, repeats: int) -> Tensor:
    """Returns the factors [K / repeats] of flex AWQ; heads that share a value head get those of the largest channels.

    Args:
        matrices, tokens_TK, groups, repeats: see `flex_smooth`.
        rounds: whether activations are rounded to int8 per token.
    """
    largest_K, mean_K = tokens_TK.abs().amax(0).clamp(min=LEAST), tokens_TK.abs().mean(0)

    def error(alpha: float) -> float:
        return _error(matrices, largest_K**alpha, rounds, lambda weight_NK, plain: plain(weight_NK))

    alpha, _ = _best((step / STEPS, error(step / STEPS)) for step in range(STEPS + 1))
    shared = mean_K.view(groups, repeats, -1).amax(1).flatten()
    return (shared**alpha).clamp(min=LEAST)


def _largest_weight(matrices: Sequence[Matrix]) -> Tensor:
    return torch.stack([weight_NK.abs().amax(0) for weight_NK, _, _ in matrices]).amax(0).clamp(min=LEAST)


def _best(tried: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Returns the exponent of the least error, the last of equal ones, and that error."""
    best, least = 0.0, float("inf")
    for exponent, error in tried:
        if error <= least:
            best, least = exponent, error
    return best, least


def _error(
    matrices: Sequence[Matrix],
    factors_K: Tensor,
    rounds: bool,
    round_weight: Callable[[Tensor, Callable[[Tensor], Quantised]], Quantised],
) -> float:
    total = 0.0
    for weight_NK, x_TK, plain in matrices:
        read_TK = x_TK / factors_K
        if rounds:
            read_TK = dequantise(quantise(read_TK, INT8))
        found_TN = read_TK @ dequantise(round_weight(weight_NK * factors_K, plain)).mT
        total += float((found_TN - x_TK @ weight_NK.mT).double().square().sum())
    return total
