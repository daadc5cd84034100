"""Huawei's Ascend NPUs.

Sources: FlagGems' vendor table (no float64, int64), a white paper's 354 TFLOP/s in bfloat16, and vllm-ascend, which
exchanges tokens with uneven splits.
"""

from __future__ import annotations

from arcforge_core.contracts.device import COLLECTIVES
from arcforge_hw.vendors.backend import VendorChip

EXCHANGES = frozenset(COLLECTIVES)


class Ascend(
    VendorChip,
    vendor="ascend",
    triton="ascend",
    device="npu",
    distributed="hccl",
    fast_bf16=True,
    collectives=EXCHANGES,
):
    """Huawei's Ascend NPUs."""
