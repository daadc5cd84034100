"""Sampling a token from each row of logits as an exponential race. Shapes: N rows, V vocabulary, K some of its ids."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def sample(logits_NV: Tensor, temperature_N: Tensor, seed_N: Tensor, place_N: Tensor) -> Tensor:
    """Samples from ``softmax(logits / temperature)``: the largest ``p / e`` wins, where e is `noise` of the row.

    This is exact (Gumbel-max; Yellott 1977).

    Args:
        logits_NV: tokens at -inf are never drawn; each row has a finite logit, and no NaN.
        temperature_N: above 0.
        seed_N, place_N: int64, at least 0.

    Returns:
        int64 [N], the lowest id among equals.
    """
    wide_NV = logits_NV.cpu().double()  # the noise is the host's, and most accelerators have no float64
    weights_NV = ((wide_NV - wide_NV.amax(-1, keepdim=True)) / temperature_N.cpu().double()[:, None]).exp()
    pairs = zip(seed_N.tolist(), place_N.tolist(), strict=True)
    drawn = [
        (weights_V / noise(seed, place, len(weights_V))).argmax()
        for weights_V, (seed, place) in zip(weights_NV, pairs, strict=True)
    ]
    return torch.stack(drawn).to(logits_NV.device) if drawn else seed_N.new_empty(0)


def noise(seed: int, place: int, vocabulary: int, ids_K: Tensor | slice = slice(None)) -> Tensor:
    """Returns independent exponential variables above 0, float64, for the whole vocabulary or for `ids_K`.

    They are a function of seed, place and id on every machine: Philox (4x64, ten rounds) is counter-based, and the
    place is part of the counter, so no two places share numbers.
    """
    bits_V = np.random.Philox(key=seed, counter=[0, place, 0, 0]).random_raw(vocabulary)
    uniform_K = torch.from_numpy((bits_V >> np.uint64(11)).astype(np.float64))[ids_K]
    return uniform_K.add_(1.0).mul_(2.0**-53).log_().neg_().clamp_(min=1e-300)
