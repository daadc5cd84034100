"""Chooses smoothing factors: how far a channel's size moves from activations into the weights that read it.

A channel is divided by s where it is written and multiplied by s where it is read, so the function stays the same and
both sides round better. SmoothQuant (arXiv:2211.10438) takes ``s = a^0.5 / w^0.5`` of the largest activation and the
largest weight; AWQ (arXiv:2306.00978) searches the exponent with the least error of the rounded product.

Shapes: T tokens, K channels, N outputs of a matrix, E experts, F their width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from arcforge_core.ops.quant import INT8, Quantised, dequantise, quantise
from arcforge_hw.quantization.flex import flex_awq, flex_smooth

LEAST = 1e-5
"""Smallest size of a channel, relative to the largest, that factors count; avoids extreme factors of dead channels."""
TRIED_TOKENS = 2048
"""Tokens of a matrix, evenly spaced, on which factors are tried; the sizes of channels count all."""


@dataclass(frozen=True)
class Reader:
    """A matrix that reads smoothed channels, and the calibration tokens that it reads.

    Attributes:
        name: of the matrix, or of the stack of experts that it is part of.
        weight_NK: the matrix.
        x_TK: its inputs.
        round: the quantizer's rounding.
    """

    name: str
    weight_NK: Tensor
    x_TK: Tensor
    round: Callable[[Tensor], Quantised]


@dataclass(frozen=True)
class Choice:
    """Factors of a place's channels.

    Attributes:
        factors: of the channels.
        factors_K: repeated for the columns that read them.
        before, after: square error of the readers' outputs without and with them, on `TRIED_TOKENS`.
    """

    factors: Tensor
    factors_K: Tensor
    before: float
    after: float


def search(
    readers: Sequence[Reader], smoothing: str, grid: int, rounds: bool, groups: int = 1, repeats: int = 1
) -> Choice | None:
    """Returns the best factors [K / repeats] of channels that several matrices read; None without any token.

    ``awq`` includes factors of 1, so by its error it is never worse than rounding alone.

    Args:
        readers: all with the same K channels; those without tokens are left out.
        smoothing: ``awq``, ``migrate``, ``flex_smooth`` or ``flex_awq``.
        grid: exponents of ``awq`` between 0 and 1.
        rounds: whether activations are rounded to int8 per token.
        groups, repeats: consecutive heads that read one value head share its factors: ``K = groups * repeats * size``.
    """
    read = [reader for reader in readers if len(reader.x_TK)]
    if not read:
        return None
    tried = [replace(r, x_TK=r.x_TK[:: -(-len(r.x_TK) // TRIED_TOKENS)]) for r in read]
    wanted = [reader.x_TK @ reader.weight_NK.mT for reader in tried]

    def spread(factors: Tensor) -> Tensor:
        return factors.view(groups, 1, -1).expand(-1, repeats, -1).flatten()

    def error(factors: Tensor) -> float:
        return sum(_loss(r, out, spread(factors), rounds) for r, out in zip(tried, wanted, strict=True))

    def by_channel(size_K: Tensor) -> Tensor:
        size = size_K.view(groups, repeats, -1).amax(1).flatten()
        return (size / size.amax().clamp(min=1e-30)).clamp(min=LEAST)

    ones = torch.ones(read[0].x_TK.shape[1] // repeats)
    before = error(ones)
    if smoothing in ("flex_smooth", "flex_awq"):
        matrices = [(r.weight_NK, r.x_TK, r.round) for r in tried]
        tokens_TK = torch.cat([r.x_TK for r in read])
        found = (
            flex_smooth(matrices, tokens_TK, groups, repeats)
            if smoothing == "flex_smooth"
            else flex_awq(matrices, tokens_TK, rounds, groups, repeats)
        )
        return Choice(found, spread(found), before, error(found))
    best = Choice(ones, spread(ones), before, before)
    for factors in _candidates(read, smoothing, grid, rounds, by_channel):
        after = error(factors)
        if smoothing == "migrate" or after < best.after:
            best = Choice(factors, spread(factors), before, after)
    return best


def _loss(reader: Reader, wanted_TN: Tensor, factors_K: Tensor, rounds: bool) -> float:
    x_TK = reader.x_TK / factors_K
    if rounds:
        x_TK = dequantise(quantise(x_TK, INT8))
    weight_NK = dequantise(reader.round(reader.weight_NK * factors_K))
    return float((x_TK @ weight_NK.mT - wanted_TN).double().square().sum())


def _candidates(
    readers: Sequence[Reader], smoothing: str, grid: int, rounds: bool, by_channel: Callable[[Tensor], Tensor]
) -> Iterator[Tensor]:
    """Yields factors, normalised so that the largest and the smallest have product 1.

    An activation counts by its largest value if it is rounded, which decides its scale, else by its mean size.
    """
    weight = by_channel(torch.stack([r.weight_NK.abs().amax(0) for r in readers]).amax(0))
    tokens_TK = torch.cat([r.x_TK for r in readers]).abs()
    size = by_channel(tokens_TK.amax(0) if rounds or smoothing == "migrate" else tokens_TK.mean(0))
    if smoothing == "migrate":
        yield _normalised((size / weight).sqrt())
        return
    for step in range(1, grid + 1):
        exponent = step / grid
        yield _normalised(size**exponent)
        yield _normalised(size**exponent / weight ** (1 - exponent))


def _normalised(factors: Tensor) -> Tensor:
    out: Tensor = factors / (factors.amax() * factors.amin()).sqrt()
    return out
