"""Newton-Schulz on the Gram matrix, for matrices much wider than high (or the reverse).

A step multiplies ``X`` by a polynomial of ``G = X X^T``, and all these polynomials commute; so the steps can be taken
on the small ``G``, and ``X`` is only touched at the end. Squaring loses the small singular values to rounding, so ``G``
is made anew after `RESTART` steps, when they have grown. Of five steps on M rows and N columns this takes
``8 M^2 N + 28 M^3`` operations, the plain form ``20 M^2 N + 10 M^3``.

Shapes: B matrices, M rows, N columns, M <= N after the turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RESTART = 2
"""Steps after which the Gram matrix is computed again."""
Coefficients = Sequence[tuple[float, float, float]]


def flops(rows: int, columns: int, steps: int = 5) -> int:
    """Returns the operations of one matrix; see `reference_flops` for the plain form."""
    m, n = sorted((rows, columns))
    total = 0
    for part in (min(steps, RESTART), max(0, steps - RESTART)):
        if part:  # Gram and application; a polynomial a step; the next Gram and the product of polynomials between
            total += 4 * m * m * n + 2 * m**3 * (part + 3 * (part - 1))
    return total


def reference_flops(rows: int, columns: int, steps: int = 5) -> int:
    """Returns the operations of one matrix in the plain form: Gram, its square, and the product with the matrix."""
    m, n = sorted((rows, columns))
    return steps * (4 * m * m * n + 2 * m**3)


def _advance(x_BMN: Tensor, steps: Coefficients) -> Tensor:
    """Takes some steps from one Gram matrix."""
    gram = torch.bmm(x_BMN, x_BMN.mT)
    product: Tensor | None = None
    for number, (a, b, c) in enumerate(steps, 1):
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        product = polynomial if product is None else torch.bmm(polynomial, product)
        if number < len(steps):
            gram = torch.bmm(polynomial, torch.bmm(gram, polynomial))
    return x_BMN if product is None else torch.bmm(product, x_BMN)


def normalized(x_BMN: Tensor, eps: float) -> tuple[Tensor, bool]:
    """Returns the matrices over their norms, the shorter side first, and whether they were turned for it."""
    wide = torch.promote_types(x_BMN.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x_BMN, dim=(-2, -1), keepdim=True, dtype=wide).clamp(min=eps)
    x = x_BMN / norm.to(x_BMN.dtype)
    tall = x.shape[-2] > x.shape[-1]
    return x.mT if tall else x, tall


def newton_schulz(x_BMN: Tensor, coefficients: Coefficients, eps: float = 1e-7) -> Tensor:
    """See `arcforge_core.ops.reference.newton_schulz`."""
    x, tall = normalized(x_BMN, eps)
    x = _advance(_advance(x, coefficients[:RESTART]), coefficients[RESTART:])
    return x.mT if tall else x
