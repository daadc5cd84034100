"""GPTQ (arXiv:2210.17323): rounds a matrix column by column and moves each column's error into those not yet rounded.

With inputs X the output's square error is ``d H d^T`` for a row's change d and ``H = X^T X``. Once column j has the
error e, the best change of the columns after it is ``-e U[j, j + 1:] / U[j, j]``, where U is the upper Cholesky factor
of H's inverse.

Shapes: N rows (outputs), K columns (inputs), G scales of a row, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from arcforge_core.ops.quant import Format, Quantised, dequantise, pack_int4

DAMPING = 0.01
"""Share of H's mean diagonal that is added to it, so that few tokens give an invertible matrix (the paper's)."""
BLOCK = 128
"""Columns after which the rest of the matrix is updated (the paper's)."""


@dataclass(frozen=True)
class Gptq:
    """Integers of a matrix, and how many of its rows kept their plain rounding because it loses less."""

    integers: Quantised
    kept_rows: int


def gptq(weight_NK: Tensor, x_TK: Tensor, form: Format, plain: Callable[[Tensor], Quantised]) -> Gptq:
    """Rounds a matrix for its inputs; no row's outputs lose more than with `plain`.

    Columns that share a row's scale are rounded in the order of their inputs' sizes; groups keep their order, and their
    scales are chosen when their first column is due. A column without inputs is rounded as `plain` would.

    Args:
        weight_NK: floating.
        x_TK: its inputs.
        form: the format.
        plain: chooses scales, and rounds the rows for which GPTQ loses more, all if H has no inverse.
    """
    wide_NK, x_TK = weight_NK.double(), x_TK.double()
    hessian_KK = x_TK.mT @ x_TK
    start = plain(weight_NK)
    if not bool(hessian_KK.isfinite().all()) or not bool((hessian_KK.diagonal() > 0).any()):
        return Gptq(start, len(weight_NK))
    order_K = torch.arange(len(hessian_KK))
    if form.group is None:
        order_K = hessian_KK.diagonal().argsort(descending=True, stable=True)
    upper_KK = inverse_factor(hessian_KK[order_K][:, order_K])
    if upper_KK is None:
        return Gptq(start, len(weight_NK))
    values_NK, scale_NG = _rounded(wide_NK[:, order_K], upper_KK, form, start, plain)
    integers_NK = torch.empty_like(values_NK, dtype=torch.int8)
    integers_NK[:, order_K] = values_NK.to(torch.int8)
    found = Quantised(integers_NK if form.bits == 8 else pack_int4(integers_NK), scale_NG)
    worse_N = _loss(found, wide_NK, hessian_KK) > _loss(start, wide_NK, hessian_KK)
    mixed = Quantised(*(torch.where(worse_N[:, None], old, new) for old, new in zip(start, found, strict=True)))
    return Gptq(mixed, int(worse_N.sum()))


def inverse_factor(hessian_KK: Tensor) -> Tensor | None:
    """Returns the upper triangular U with ``U^T U`` the inverse of the damped H; None if there is none in float64."""
    damped_KK = hessian_KK.clone()
    diagonal_K = damped_KK.diagonal()
    diagonal_K.masked_fill_(diagonal_K == 0, 1.0)  # no input: not coupled to any other column
    diagonal_K += DAMPING * hessian_KK.diagonal().mean()
    lower_KK, fault = torch.linalg.cholesky_ex(damped_KK)
    if int(fault):
        return None
    upper_KK, fault = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower_KK), upper=True)
    return None if int(fault) else upper_KK


def _rounded(
    wide_NK: Tensor, upper_KK: Tensor, form: Format, start: Quantised, plain: Callable[[Tensor], Quantised]
) -> tuple[Tensor, Tensor]:
    """Returns integers [N, K], as floats, and scales; columns are in the order of rounding."""
    left_NK, values_NK, scale_NG = wide_NK.clone(), torch.empty_like(wide_NK), start.scale.clone()
    columns, group = left_NK.shape[1], form.group or left_NK.shape[1]
    block = BLOCK if form.group is None else max(form.group, BLOCK // form.group * form.group)
    for first in range(0, columns, block):
        last = min(first + block, columns)
        errors_NB = torch.empty_like(left_NK[:, first:last])
        for j in range(first, last):
            if form.group is not None and j % group == 0:
                scale_NG[:, j // group] = plain(left_NK[:, j : j + group].to(scale_NG.dtype)).scale[:, 0]
            scale_N = scale_NG[:, j // group].double()
            values_NK[:, j] = (left_NK[:, j] / scale_N).round().clamp(-form.largest - 1, form.largest)
            errors_NB[:, j - first] = (left_NK[:, j] - values_NK[:, j] * scale_N) / upper_KK[j, j]
            left_NK[:, j:last] -= errors_NB[:, j - first, None] * upper_KK[j, j:last]
        left_NK[:, last:] -= errors_NB @ upper_KK[first:last, last:]
    return values_NK, scale_NG


def _loss(integers: Quantised, wide_NK: Tensor, hessian_KK: Tensor) -> Tensor:
    """Returns the square error of each row's outputs [N]."""
    change_NK = dequantise(integers, torch.float64) - wide_NK
    loss_N: Tensor = ((change_NK @ hessian_KK) * change_NK).sum(-1)
    return loss_N
