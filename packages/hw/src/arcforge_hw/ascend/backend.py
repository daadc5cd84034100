"""Huawei's Ascend NPUs: detected, described, and served by kernels made of torch's operators.

Sources: FlagGems' vendor table (no float64, int64), a white paper's 354 TFLOP/s in bfloat16, and vllm-ascend, which
exchanges tokens with uneven splits.
"""

from __future__ import annotations

from arcforge_core.contracts.device import COLLECTIVES, Capabilities, Identity
from arcforge_hw.vendors.backend import VendorChip


class Ascend(VendorChip):
    """Huawei's Ascend NPUs."""

    name = "ascend"
    identity = Identity("ascend", "npu", "PrivateUse1", "hccl", triton="ascend")
    capabilities = Capabilities(int64=True, bf16=True, fast_bf16=True, collectives=frozenset(COLLECTIVES))
    module = "torch_npu"
