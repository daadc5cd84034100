"""``npu_grouped_matmul`` and ``npu_quant_matmul``. See `layouts` for the source.

Shapes: T rows, K inputs, N outputs, E groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from arcforge_core.ops.quant import unpack_int4
from arcforge_core.ops.reference.quant_linear import exact_product
from arcforge_core.testing.fake_chip.npu.rows import FLOATS
from arcforge_core.testing.fake_chip.vendor import need

CODES = {1: torch.int8, 3: torch.int32, 5: torch.float16, 6: torch.float32, 15: torch.bfloat16}
"""torch's numbers of dtypes, as a schema's ``int? output_dtype`` passes them."""


def plain_or_turned(op: str, name: str, x: Tensor) -> None:
    """Demands a matrix whose rows or columns are contiguous."""
    need(x.is_contiguous() or x.mT.is_contiguous(), op, f"{name} must be contiguous, or the transpose of such a tensor")


def quant_matmul(
    x1: Tensor, x2: Tensor, scale: Tensor, *, offset: Tensor | None = None, pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None, output_dtype: int | None = None, x1_dtype: int | None = None,
    x2_dtype: int | None = None, pertoken_scale_dtype: int | None = None, scale_dtype: int | None = None,
    group_sizes: list[int] | None = None, y_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns [T, N]: int8 rows times int8 [K, N], both scales and the bias, in bfloat16 or float16."""
    op = "npu_quant_matmul"
    need(x1.dtype == x2.dtype == torch.int8, op, "x1 and x2 must be int8")
    need(x1.ndim == x2.ndim == 2 and x1.shape[1] == x2.shape[0], op, "x1 [T, K] and x2 [K, N]")
    need(x1.is_contiguous(), op, "x1 must be contiguous")
    plain_or_turned(op, "x2", x2)
    need(max(x1.shape[1], x2.shape[1]) <= 65535 and x1.numel() > 0, op, "sizes must be from 1 to 65535")
    out = CODES.get(output_dtype or 0)
    need(out in (torch.bfloat16, torch.float16), op, "output_dtype must be bfloat16 or float16 on this chip")
    wide = (torch.float32, torch.bfloat16) if out == torch.bfloat16 else (torch.float32,)
    need(scale.dtype in wide and scale.shape == (x2.shape[1],), op, "scale must be float32 [N]")
    if pertoken_scale is None:
        need(False, op, "pertoken_scale is required on this chip")
        raise AssertionError
    need(pertoken_scale.dtype == torch.float32 and pertoken_scale.shape == (len(x1),), op, "float32 pertoken_scale [T]")
    need(offset is None and group_sizes is None and y_scale is None, op, "this chip has no offsets and groups")
    y = exact_product(x1, x2.mT).float() * scale.float() * pertoken_scale[:, None]
    if bias is not None:
        need(bias.dtype in (torch.float32, torch.bfloat16) and bias.shape == (x2.shape[1],), op, "a floating bias [N]")
        y = y + bias.float()
    return y.to(out)


def grouped_matmul(
    x: Sequence[Tensor], weight: Sequence[Tensor], *, bias: Sequence[Tensor] | None = None,
    scale: Sequence[Tensor] | None = None, offset: Sequence[Tensor] | None = None,
    antiquant_scale: Sequence[Tensor] | None = None, antiquant_offset: Sequence[Tensor] | None = None,
    per_token_scale: Sequence[Tensor] | None = None, group_list: Tensor | None = None,
    activation_input: Sequence[Tensor] | None = None, activation_quant_scale: Sequence[Tensor] | None = None,
    activation_quant_offset: Sequence[Tensor] | None = None, split_item: int = 0, group_type: int | None = None,
    group_list_type: int = 0, act_type: int = 0, tuning_config: list[int] | None = None,
    output_dtype: int | None = None, x_dtype: int | None = None, weight_dtype: int | None = None,
    scale_dtype: int | None = None, per_token_scale_dtype: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """Returns one tensor: groups of rows times a matrix each (group_type 0), or groups of inputs summed apart (2).

    Weights are floating, int8, or int4 of which an int32 packs eight along N. With int4 the rows are multiplied as two
    int4 each, ``16 high + (low - 8)``, and the bias must add ``8 * sum of the dequantised column``.
    """
    op = "npu_grouped_matmul"
    unused = (
        offset,
        antiquant_scale,
        antiquant_offset,
        activation_input,
        activation_quant_scale,
        activation_quant_offset,
    )
    need(all(u is None for u in unused) and act_type == 0, op, "this chip has no activations and half quantisation")
    need(
        len(x) == len(weight) == 1 and split_item in (2, 3), op, "one tensor each, and split_item 2 or 3 for one result"
    )
    need(group_type in (0, 2), op, f"group_type={group_type} must be 0 or 2")
    rows, matrices = x[0], weight[0]
    need(rows.ndim == 2, op, "x must be [T, K]")
    length = len(rows) if group_type == 0 else rows.shape[1]
    spans = group_spans(op, group_list, group_list_type, length)
    if group_type == 2:
        need(rows.dtype == matrices.dtype and rows.dtype in FLOATS, op, "groups of inputs need one floating dtype")
        need(matrices.ndim == 2 and len(matrices) == length, op, "weight must be [K, N]")
        need(rows.mT.is_contiguous() and matrices.is_contiguous(), op, "x must be the transpose of contiguous rows")
        return [torch.stack([rows[:, a:b].float() @ matrices[a:b].float() for a, b in spans]).to(rows.dtype)]
    need(rows.is_contiguous(), op, "x must be contiguous")
    need(matrices.ndim == 3 and len(matrices) == len(spans), op, "weight must be [E, K, N], a matrix for each group")
    need(rows.shape[1] == matrices.shape[1], op, f"x has {rows.shape[1]} inputs, weight {matrices.shape[1]}")
    plain_or_turned(op, "weight", matrices)
    if rows.dtype in FLOATS:
        need(matrices.dtype == rows.dtype and scale is None and bias is None, op, "one floating dtype, without scales")
        parts = [rows[a:b].float() @ m.float() for (a, b), m in zip(spans, matrices, strict=True)]
        return [torch.cat(parts).to(rows.dtype)]
    need(rows.dtype == torch.int8, op, "x must be floating or int8")
    need(scale is not None and per_token_scale is not None, op, "int8 needs scale and per_token_scale")
    assert scale is not None and per_token_scale is not None
    token_T1 = per_token_scale[0][:, None]
    need(token_T1.dtype == torch.float32 and len(token_T1) == len(rows), op, "per_token_scale must be float32 [T]")
    out = CODES.get(output_dtype or 0)
    need(out in (torch.bfloat16, torch.float16), op, "output_dtype must be bfloat16 or float16")
    run = _int8_groups if matrices.dtype == torch.int8 else _int4_groups
    return [(run(op, rows, matrices, scale[0], bias, spans, out) * token_T1).to(out)]


def group_spans(op: str, group_list: Tensor | None, kind: int, length: int) -> list[tuple[int, int]]:
    """Returns (start, end) of each group from prefix sums (kind 0) or from sizes (kind 1)."""
    if group_list is None:
        need(False, op, "group_list is required")
        return []
    need(group_list.dtype == torch.int64 and group_list.ndim == 1, op, "group_list must be int64 [E]")
    need(kind in (0, 1) and len(group_list) <= 1024, op, "group_list_type must be 0 or 1, with up to 1024 groups")
    need(kind == 0 or len(group_list) > 1, op, "sizes of one group are not supported")
    ends = (group_list if kind == 0 else group_list.cumsum(0)).tolist()
    bounds = [0, *ends]
    need(all(a <= b for a, b in pairwise(bounds)), op, f"group_list {group_list.tolist()} must be sizes or rising sums")
    need(bounds[-1] == length, op, f"group_list of type {kind} must cover {length} rows, not {bounds[-1]}")
    return list(pairwise(bounds))


def _int8_groups(
    op: str, rows: Tensor, matrices: Tensor, scale: Tensor, bias: object, spans: list[tuple[int, int]],
    out: torch.dtype | None,
) -> Tensor:  # fmt: skip
    wanted = torch.bfloat16 if out == torch.bfloat16 else torch.float32
    need(
        scale.dtype == wanted and scale.shape == (len(matrices), matrices.shape[2]),
        op,
        f"scale must be {wanted} [E, N]",
    )
    need(bias is None, op, "this chip has no bias with int8")
    parts = zip(spans, matrices, scale, strict=True)
    return torch.cat([exact_product(rows[a:b], m.mT).float() * s.float() for (a, b), m, s in parts])


def _int4_groups(
    op: str, rows: Tensor, packed: Tensor, scale: Tensor, bias: Sequence[Tensor] | None,
    spans: list[tuple[int, int]], out: torch.dtype | None,
) -> Tensor:  # fmt: skip
    need(packed.dtype == torch.int32 and packed.is_contiguous(), op, "weight must be int8, or contiguous int32 of int4")
    matrices = unpack_int4(packed.view(torch.uint8))
    experts, _, outputs = matrices.shape
    need(scale.dtype == torch.int64 and scale.shape == (experts, 1, outputs), op, "scale must be int64 [E, 1, N]")
    bits = scale.to(torch.int32).view(torch.float32)
    need(bool((scale >> 32 == 0).all()) and bool(bits.isfinite().all()), op, "scale must hold float32 bits")
    if bias is None:
        need(False, op, "int4 needs the bias 8 * sum of the dequantised column")
        raise AssertionError
    need(bias[0].dtype == torch.float32 and bias[0].shape == (experts, outputs), op, "bias must be float32 [E, N]")
    need(out == torch.bfloat16, op, "int4 gives bfloat16")
    high = (rows.int() >> 4).to(torch.int8)
    low = ((rows.int() & 15) - 8).to(torch.int8)
    parts = []
    for (a, b), m, s, shift in zip(spans, matrices, bits, bias[0], strict=True):
        sums = 16 * exact_product(high[a:b], m.mT) + exact_product(low[a:b], m.mT)
        parts.append(sums.float() * s + shift)
    return torch.cat(parts)
