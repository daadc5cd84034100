"""Newton-Schulz on the Gram matrix, for matrices much wider than tall (or the reverse).

A step multiplies ``X`` by a polynomial of ``G = X X^T``, and all these polynomials commute; so the steps can use only
the small ``G``, with one product with ``X`` at the end. Squaring loses the small singular values to rounding, so ``G``
is recomputed after `RESTART` steps, when they have grown. Five steps on M rows and N columns take
``8 M^2 N + 28 M^3`` operations, the plain form ``20 M^2 N + 10 M^3``.

Shapes: B matrices, M rows, N columns, M <= N after transposing.
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
        if part:  # Gram and application; a polynomial per step; the next Gram and the product of polynomials between
            total += 4 * m * m * n + 2 * m**3 * (part + 3 * (part - 1))
    return total


def reference_flops(rows: int, columns: int, steps: int = 5) -> int:
    """Returns the operations of one matrix in the plain form: Gram, its square, and the product with the matrix."""
    m, n = sorted((rows, columns))
    return steps * (4 * m * m * n + 2 * m**3)


def _polynomials(gram: Tensor, steps: Coefficients) -> Tensor:
    """Returns the product of several steps' polynomials of a Gram matrix."""
    product: Tensor | None = None
    for number, (a, b, c) in enumerate(steps, 1):
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        product = polynomial if product is None else torch.bmm(polynomial, product)
        if number < len(steps):
            gram = torch.bmm(polynomial, torch.bmm(gram, polynomial))
    return torch.eye(gram.shape[-1]).to(gram).expand_as(gram).clone() if product is None else product


def newton_schulz(x_BMN: Tensor, coefficients: Coefficients, eps: float = 1e-7) -> Tensor:
    """See `arcforge_core.ops.reference.newton_schulz`."""
    tall = x_BMN.shape[-2] > x_BMN.shape[-1]
    x = x_BMN.mT if tall else x_BMN
    # The trace contains the norm, and dividing by it can wait: passes over tensors as large as x are kept to a minimum.
    gram = torch.bmm(x, x.mT)
    norm = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None].sqrt_().clamp_(min=eps)
    gram.div_(norm).div_(norm)
    x = torch.bmm(_polynomials(gram, coefficients[:RESTART]).div_(norm), x)
    if later := coefficients[RESTART:]:
        x = torch.bmm(_polynomials(torch.bmm(x, x.mT), later), x)
    return x.mT if tall else x
