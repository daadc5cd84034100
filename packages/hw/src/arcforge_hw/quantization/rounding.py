"""Ways to choose the scales of integers; rounding itself is `arcforge_core.ops.quant`'s."""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.ops.quant import Format, Quantised, pack_int4, quantise, unpack_int4

CONVERGED = 1e-10
"""Change of the mean square error below which a search stops, absolute and relative (msModelSlim's)."""


def ssz(weight: Tensor, form: Format, steps: int) -> Quantised:
    """Rounds, and then fits scales to integers and integers to scales in turn; keeps the best of every group.

    Starts from `quantise`, so no group's square error is larger than that. Symmetric SSZ of msModelSlim: the scale is
    the least-squares one, ``sum(w q) / sum(q^2)``.

    Args:
        weight: [..., N, K], floating.
        form: the format.
        steps: maximum number of fits.
    """
    start = quantise(weight, form)
    best_q = (start.values if form.bits == 8 else unpack_int4(start.values)).to(start.scale.dtype)
    best_q = best_q.unflatten(-1, (start.scale.shape[-1], -1))
    wide = weight.detach().to(start.scale.dtype).unflatten(-1, (start.scale.shape[-1], -1))
    best_scale, integers = start.scale, best_q
    best_error = (wide - best_q * best_scale[..., None]).square().mean(-1)
    for _ in range(steps):
        scale = (wide * integers).sum(-1) / integers.square().sum(-1).clamp(min=1e-30)
        scale = scale.clamp(min=form.least_scale)
        integers = (wide / scale[..., None]).round().clamp(-form.largest - 1, form.largest)
        error = (wide - integers * scale[..., None]).square().mean(-1)
        gain = best_error - error
        if bool(((gain / best_error.clamp(min=1e-4) < CONVERGED) | (gain.abs() < CONVERGED)).all()):
            break
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
        best_q = torch.where(better[..., None], integers, best_q)
    values = best_q.flatten(-2).to(torch.int8)
    return Quantised(values if form.bits == 8 else pack_int4(values), best_scale)
