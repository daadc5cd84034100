"""Newton-Schulz orthogonalisation. Shapes: B matrices of M rows and N columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def newton_schulz(x_BMN: Tensor, coefficients: Sequence[tuple[float, float, float]], eps: float = 1e-7) -> Tensor:
    """Orthogonalises each matrix: one odd polynomial step ``aX + (bA + cA^2)X``, ``A = XX^T``, per triple.

    Each matrix is divided by its Frobenius norm (in fp32 or wider, at least `eps`); the shorter side is the Gram side.
    Runs in x's dtype. Zero matrices stay zero.
    """
    wide = torch.promote_types(x_BMN.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x_BMN, dim=(-2, -1), keepdim=True, dtype=wide).clamp(min=eps)
    x: Tensor = x_BMN / norm.to(x_BMN.dtype)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for a, b, c in coefficients:
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)  # the order of roundings is torch.optim.Muon's
    return x.mT if tall else x
