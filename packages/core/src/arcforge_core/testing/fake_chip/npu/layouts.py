"""Lengths, pages and index lists of attention on Ascend's NPUs, checked as op-plugin's documents demand.

Source of all modules of this folder: ``op_plugin/config/op_plugin_functions.yaml`` (schemas), ``derivatives.yaml``
(gradients) and ``docs/zh/custom_APIs/torch_npu`` (demands for Atlas A2 and A3) of github.com/Ascend/op-plugin, commit
517f2e7d of 2026-08-21. Nothing here has been compared with silicon.

Shapes: T query tokens, S keys, D size of a key, B sequences, K selected keys.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from arcforge_core.testing.fake_chip.vendor import need

HALF = (torch.bfloat16, torch.float16)
EVER = 2**63 - 1
"""The only value of ``pre_tokens`` and ``next_tokens``."""


def contiguous(op: str, **tensors: Tensor | None) -> None:
    """Demands that the tensors are contiguous."""
    for name, x in tensors.items():
        need(x is None or x.is_contiguous(), op, f"{name} must be contiguous")


def causal_mode(op: str, sparse_mode: int, pre_tokens: int, next_tokens: int) -> None:
    """Demands a documented mask: all keys (0), or bottom-right causal (3)."""
    need(sparse_mode in (0, 3), op, f"sparse_mode={sparse_mode} must be 0 or 3")
    need(pre_tokens == next_tokens == EVER, op, "pre_tokens and next_tokens must be 2**63 - 1")


def prefix_sums(op: str, name: str, lengths: Tensor | None, rows: int) -> list[tuple[int, int]]:
    """Returns (start, end) of each sequence, from the int32 prefix sums that layout TND demands."""
    if lengths is None:
        need(False, op, f"{name} is required for layout TND")
        return []
    need(lengths.dtype == torch.int32 and lengths.ndim == 1, op, f"{name} must be int32 [B]")
    return spans(op, name, lengths.tolist(), rows)


def spans(op: str, name: str, ends: list[int], rows: int) -> list[tuple[int, int]]:
    """Returns (start, end) of each sequence from prefix sums without the leading 0."""
    bounds = [0, *ends]
    rising = all(a <= b for a, b in pairwise(bounds))
    need(rising and bounds[-1] == rows, op, f"{name}={ends} must be prefix sums that end with {rows}")
    return list(pairwise(bounds))


def keys_of(
    op: str, key: Tensor, layout: str, lengths: Tensor | None, table_BP: Tensor | None, count: int
) -> list[Tensor]:
    """Returns the keys [S, D] of each of `count` sequences.

    Args:
        op: the operator.
        key: [S, 1, D] for layout TND, [blocks, block, 1, D] for PA_BSND.
        layout: TND or PA_BSND; this chip has no BSND.
        lengths: prefix sums for TND, and the length of each sequence for PA_BSND, int32.
        table_BP: block table for PA_BSND, int32.
        count: sequences of the queries.
    """
    if layout == "TND":
        need(key.ndim == 3 and key.shape[1] == 1, op, "keys in layout TND are [T, 1, D]")
        need(table_BP is None, op, "block_table belongs to layout PA_BSND")
        found = [key[start:end, 0] for start, end in prefix_sums(op, "lengths of keys", lengths, len(key))]
    else:
        need(layout == "PA_BSND", op, f"layout of keys {layout!r} must be TND or PA_BSND")
        need(key.ndim == 4 and key.shape[2] == 1, op, "keys in layout PA_BSND are [blocks, block, 1, D]")
        need(key.shape[1] % 16 == 0 and key.shape[1] <= 1024, op, "blocks must be multiples of 16, up to 1024")
        if table_BP is None or lengths is None:
            need(False, op, "PA_BSND needs a block table and the lengths of the keys")
            return []
        need(table_BP.dtype == lengths.dtype == torch.int32, op, "block table and lengths must be int32")
        need(table_BP.ndim == 2 and len(table_BP) == len(lengths) == count, op, "one row of the table per sequence")
        room = table_BP.shape[1] * key.shape[1]
        need(all(0 <= n <= room for n in lengths.tolist()), op, f"lengths {lengths.tolist()} must fit {room} rows")
        rows = zip(table_BP.tolist(), lengths.tolist(), strict=True)
        found = [key[pages[: -(-n // key.shape[1])]].flatten(0, 1)[:n, 0] for pages, n in rows]
    need(len(found) == count, op, f"{count} sequences of queries need as many of keys, not {len(found)}")
    return found


def selected(op: str, indices_TK: Tensor, keys: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Returns key indices and their validity, without columns that no query uses.

    Valid entries come first in a row, invalid ones (-1) after them.
    """
    valid_TK = indices_TK >= 0
    need(not (valid_TK[:, 1:] & ~valid_TK[:, :-1]).any(), op, "valid indices must come before invalid ones")
    need(bool((indices_TK < keys).all()), op, f"indices must be below {keys}")
    queries = len(indices_TK)
    if causal:
        last_T1 = torch.arange(keys - queries, keys)[:, None]
        valid_TK = valid_TK & (indices_TK <= last_T1)
    need(bool(valid_TK.any(1).all()), op, "a query without a visible key has no defined result")
    width = int((indices_TK >= 0).sum(1).max())
    return indices_TK[:, :width].long(), valid_TK[:, :width]
