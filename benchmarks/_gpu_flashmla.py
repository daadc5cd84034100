"""FlashMLA's compiled kernels as a peer: operators that a library of its own registers, loaded from a file.

`ARCFORGE_FLASHMLA` is the path of ``_flashmla_C.abi3.so``, which the wheels of vLLM contain; it must have been built
for the installed torch: vLLM 0.20.0 for torch 2.11. Kernels for Hopper take 64 or 128 heads, entries of 512 + 64 and
pages of 64 rows.
"""

from __future__ import annotations

import functools
import os

import torch
from torch import Tensor

from _gpu_clock import Job

PAGE = 64


@functools.cache
def operators() -> object:
    """Returns the registered operators.

    Raises:
        RuntimeError: no library is named, or it does not load.
    """
    path = os.environ.get("ARCFORGE_FLASHMLA")
    if not path:
        raise RuntimeError("ARCFORGE_FLASHMLA names no library")
    torch.ops.load_library(path)
    return torch.ops._flashmla_C


def sparse_prefill(q_THC: Tensor, kv_SC: Tensor, rows_TK: Tensor, latent: int, scale: float) -> Job:
    """Returns a job that attends to selected rows; unselected places are -1."""
    run = operators().sparse_prefill_fwd  # type: ignore[attr-defined]
    kv_S1C, rows_T1K = kv_SC[:, None].contiguous(), rows_TK[:, None].to(torch.int32).contiguous()
    return lambda: run(q_THC, kv_S1C, rows_T1K, scale, latent, None, None, None)[0]


def dense_decode(q_BHC: Tensor, kv_BSC: Tensor, latent: int, scale: float) -> Job:
    """Returns a job that decodes one token of each sequence over its whole cache."""
    run = operators().dense_decode_fwd  # type: ignore[attr-defined]
    batch, keys, width = kv_BSC.shape
    pages = kv_BSC.view(-1, PAGE, 1, width)
    table = torch.arange(len(pages), device=q_BHC.device, dtype=torch.int32).view(batch, -1)
    lengths = torch.full((batch,), keys, device=q_BHC.device, dtype=torch.int32)
    plan: list[Tensor | None] = [None, None]

    def job() -> Tensor:
        out, _, *made = run(q_BHC[:, None], pages, latent, lengths, table, scale, True, *plan, None)
        plan[:] = made  # the schedule of the splits, made in the first call
        found: Tensor = out[:, 0]
        return found

    return job
