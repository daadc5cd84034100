"""Rows of a tensor in which some occur several times, with gradients. T: rows; S: rows of the result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Runs = tuple[tuple[int, int], ...]
"""First row and end of each run."""


class _RepeatedRows(torch.autograd.Function):
    """Copies and adds whole runs: `index_select` would add its gradient row by row."""

    @staticmethod
    def forward(ctx: Any, x_T: Tensor, runs: Runs) -> Tensor:
        ctx.runs, ctx.shape = runs, x_T.shape
        return torch.cat([x_T[start:end] for start, end in runs])

    @staticmethod
    def backward(ctx: Any, grad_S: Tensor) -> tuple[Tensor, None]:
        wide = torch.promote_types(grad_S.dtype, torch.float32)
        grad_T = torch.zeros(ctx.shape, dtype=wide, device=grad_S.device)
        first = 0
        for start, end in ctx.runs:
            grad_T[start:end] += grad_S[first : first + end - start]
            first += end - start
        return grad_T.to(grad_S.dtype), None


def repeat_rows(x_T: Tensor, runs: Runs) -> Tensor:
    """Returns the runs' rows [S, ...], one run after another; a row's gradient is the sum over its copies."""
    out_S: Tensor = _RepeatedRows.apply(x_T, runs)
    return out_S
