"""Selection of keys by ``npu_lightning_indexer``, or by its int8 form from a cache of int8 records.

Shapes: T query tokens, S keys, I index heads, D index head size, K selected keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_core.contracts.batch import Pages
from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_core.ops.quant import SCALE_BYTES
from arcforge_core.ops.reference import laid_out
from arcforge_hw.ascend.calls import ascending, ends, npu

HEAD_DIM, HEADS = 128, 64
COUNTS = (*range(1, 2049), 3072, 4096, 5120, 6144, 7168, 8192)
"""Selected keys that the operator supports; its int8 form stops at 2,048."""
BLOCKS = range(16, 1025, 16)
"""Rows of a cache page that the operator reads in place; others are gathered."""


def supports(call: OpCall) -> Verdict:
    """Returns whether the sizes are documented for A2 and A3."""
    if call.dtype != torch.bfloat16:
        return Verdict(False, f"npu_lightning_indexer takes half precision, not {call.dtype}")
    heads, width, count = (call.sizes.get(n, d) for n, d in (("heads", 1), ("head_dim", HEAD_DIM), ("topk", 1)))
    if width != HEAD_DIM or heads > HEADS:
        return Verdict(False, f"npu_lightning_indexer takes up to {HEADS} heads of {HEAD_DIM}, not {heads} of {width}")
    if count not in COUNTS:
        return Verdict(False, f"npu_lightning_indexer selects up to 2048 keys or n x 1024 up to 8192, not {count}")
    return YES


def limits(rounds_queries: bool, use_relu: bool, records: bool, topk: int) -> Verdict:
    """Returns whether a call's keys and scores are those of the operators."""
    if not use_relu:
        return Verdict(False, "npu_lightning_indexer has a ReLU")
    if records and not rounds_queries:
        return Verdict(False, "npu_quant_lightning_indexer rounds queries too: hardware.quant_indexer=true allows it")
    if records and topk > 2048:
        return Verdict(False, f"npu_quant_lightning_indexer selects up to 2048 keys, not {topk}")
    return YES


def indexer_topk(
    q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, cu_query: Tensor, cu_key: Tensor, topk: int, use_relu: bool = True,
    pages: Pages | None = None,
) -> Tensor:  # fmt: skip
    """See `arcforge_core.ops.reference.indexer_topk`; no document says which of two equal scores is selected."""
    device, records = q_TID.device, k_SD.dtype == torch.int8
    lengths = {"actual_seq_lengths_query": ends(cu_query, device)}
    if pages is None or records or pages.size not in BLOCKS:
        k_SD = laid_out(k_SD, cu_key, pages)
        lengths["actual_seq_lengths_key"] = ends(cu_key, device)
        layout = "TND"
    else:
        k_SD = k_SD[: len(k_SD) // pages.size * pages.size].unflatten(0, (-1, pages.size))
        lengths["actual_seq_lengths_key"] = cu_key.diff().to(device, torch.int32)  # here they are no sums
        lengths["block_table"] = pages.table_NP.to(device, torch.int32)
        layout = "PA_BSND"
    how = {"layout_query": "TND", "layout_key": layout, "sparse_count": topk, "sparse_mode": 3}
    with torch.no_grad():
        if records:
            indices_T1K = _from_records(q_TID, k_SD, w_TI, lengths | how)
        else:
            key = k_SD[..., None, :].contiguous()
            indices_T1K = npu("npu_lightning_indexer")(q_TID.contiguous(), key, w_TI.contiguous(), **lengths, **how)[0]
        return ascending(indices_T1K[:, 0])


def _from_records(q_TID: Tensor, records_SB: Tensor, w_TI: Tensor, how: dict[str, object]) -> Tensor:
    q, q_scale_TI = npu("npu_dynamic_quant")(q_TID)
    k = records_SB[:, None, :-SCALE_BYTES].contiguous()
    k_scale_S1 = records_SB[:, -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    scales = (q_scale_TI.half(), k_scale_S1.half())
    indices: Tensor = npu("npu_quant_lightning_indexer")(q, k, w_TI.half(), *scales, 0, 0, **how)
    return indices
