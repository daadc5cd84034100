"""Orthogonalisation of batches of matrices through the op ``newton_schulz``.

Shapes: B matrices, M rows, N columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from arcforge_core.contracts.hardware import OpCall
from arcforge_core.ops import Ops
from arcforge_core.ops.compat import fast_bf16, measured

EPS = 1e-7
"""Smallest norm that the op divides by. After `normalize_exponent` only zero matrices are below it."""


def iteration_dtype(choice: str, device: torch.device, deterministic: bool = False) -> torch.dtype:
    """Returns the dtype of the iteration for ``ns_dtype`` = ``auto``, ``bf16`` or ``fp32``.

    ``auto`` is the faster, but ``fp32`` where that is a measurement and results have to be deterministic.
    """
    if choice == "auto":
        fixed = deterministic and measured(device.type)
        choice = "bf16" if not fixed and fast_bf16(device.type) else "fp32"
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[choice]


def normalize_exponent(x_BMN: Tensor) -> Tensor:
    """Multiplies each matrix in place by the power of two that brings its largest entry into [0.5, 1).

    Exact, so a matrix of ordinary size gives the same result with or without it; a gradient of 1e-20, whose squares
    vanish in float32, is orthogonalised like any other. Zero matrices stay zero.
    """
    peak_B11 = x_BMN.abs().amax(dim=(-2, -1), keepdim=True).float()  # torch's infinity norm takes ten times as long
    peak_B11 = peak_B11.clamp(min=torch.finfo(torch.float32).tiny)
    return x_BMN.mul_(peak_B11.frexp().mantissa / peak_B11)


def bind_newton_schulz(
    ops: Ops,
    shape: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    steps: Sequence[tuple[float, float, float]],
) -> Callable[[Tensor], Tensor]:
    """Returns a function that orthogonalises matrices of one shape: [B, M, N] of `dtype` to the same, near-orthonormal.

    The backend is chosen once, on binding. The function may overwrite its argument.
    """
    sizes = {"rows": shape[0], "columns": shape[1]}
    kernel = ops.bind(OpCall("newton_schulz", device.type, dtype, needs_grad=False, sizes=sizes))

    def orthogonalize(x_BMN: Tensor) -> Tensor:
        result: Tensor = kernel(normalize_exponent(x_BMN), steps, EPS)
        return result

    return orthogonalize
