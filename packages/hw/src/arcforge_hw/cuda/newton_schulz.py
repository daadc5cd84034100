"""Newton-Schulz that computes half of each Gram product: they are symmetric, so tiles above the diagonal are mirrored.

Five steps on M rows and N columns take ``15 M^2 N + 5 M^3`` operations, the plain form ``20 M^2 N + 10 M^3``.

Shapes: B matrices, M rows, N columns, M <= N after transposing; I and J are rows of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_hw.cuda.launch import check, tuned
from arcforge_hw.torch_ops.newton_schulz import flops


@triton.jit
def symmetric_product(
    x, y, out, rows, columns, stride_b, stride_m, stride_n, alpha, beta, ADD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A tile of ``alpha x x^T (+ beta y)`` of one matrix per program, and its mirror image; `y` is symmetric.

    A matrix must have fewer than 2^31 entries: 64-bit offsets would spill registers.
    """
    if tl.program_id(1) > tl.program_id(0):
        return
    matrix, n = tl.program_id(2).to(tl.int64), tl.arange(0, BLOCK_N)
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    x_at = x + matrix * stride_b
    sum_IJ = tl.zeros((BLOCK_M, BLOCK_M), dtype=tl.float32)
    for start in range(0, columns, BLOCK_N):
        inside = (start + n < columns)[None, :]
        column_N = (start + n)[None, :] * stride_n
        x_IN = tl.load(x_at + i[:, None] * stride_m + column_N, mask=(i < rows)[:, None] & inside, other=0.0)
        x_JN = tl.load(x_at + j[:, None] * stride_m + column_N, mask=(j < rows)[:, None] & inside, other=0.0)
        sum_IJ = tl.dot(x_IN, tl.trans(x_JN), sum_IJ, input_precision="ieee")
    there = (i < rows)[:, None] & (j < rows)[None, :]
    at = i[:, None] * rows + j[None, :]
    sum_IJ = sum_IJ * alpha
    if ADD:
        sum_IJ += beta * tl.load(y + matrix * rows * rows + at, mask=there, other=0.0).to(tl.float32)
    value_IJ = sum_IJ.to(out.dtype.element_ty)
    out += matrix * rows * rows
    tl.store(out + at, value_IJ, mask=there)
    if tl.program_id(1) < tl.program_id(0):
        tl.store(out + j[None, :] * rows + i[:, None], value_IJ, mask=there)


def symmetric(x_BMN: Tensor, alpha: float = 1.0, plus_BMM: Tensor | None = None, beta: float = 0.0) -> Tensor:
    """Returns ``alpha x x^T (+ beta plus)`` [B, M, M] in x's dtype, summed in fp32."""
    check(x_BMN)
    (batch, rows, columns), options = x_BMN.shape, tuned("symmetric_product")
    out_BMM = x_BMN.new_empty(batch, rows, rows)
    if out_BMM.numel():
        tiles = -(-rows // options["BLOCK_M"])
        added = x_BMN if plus_BMM is None else plus_BMM.contiguous()
        symmetric_product[(tiles, tiles, batch)](
            x_BMN, added, out_BMM, rows, columns, *x_BMN.stride(), alpha, beta, ADD=plus_BMM is not None, **options
        )
    return out_BMM


def symmetric_flops(rows: int, columns: int, steps: int = 5) -> int:
    """Returns the operations of one matrix; tiles on the diagonal count half."""
    m, n = sorted((rows, columns))
    return steps * (3 * m * m * n + m**3)


def supports(call: OpCall) -> Verdict:
    """Supports matrices with tiles to mirror."""
    rows, columns = sides = call.sizes.get("rows", 1), call.sizes.get("columns", 1)
    if min(sides) <= (tile := tuned("symmetric_product")["BLOCK_M"]):
        return Verdict(False, f"a Gram matrix of {min(sides)} rows is a single tile of {tile}: nothing to mirror")
    if call.dtype != torch.bfloat16 and flops(*sides) < symmetric_flops(*sides):
        return Verdict(False, f"the Gram form has fewer operations for {rows} x {columns}")
    return YES


def newton_schulz(x_BMN: Tensor, coefficients: Sequence[tuple[float, float, float]], eps: float = 1e-7) -> Tensor:
    """See `arcforge_core.ops.reference.newton_schulz`."""
    wide = torch.promote_types(x_BMN.dtype, torch.float32)
    norm = torch.linalg.vector_norm(x_BMN, dim=(-2, -1), keepdim=True, dtype=wide).clamp(min=eps)
    x: Tensor = x_BMN / norm.to(x_BMN.dtype)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for a, b, c in coefficients:
        gram = symmetric(x)
        x = torch.baddbmm(x, symmetric(gram, c, gram, b), x, beta=a)
    return x.mT if tall else x
