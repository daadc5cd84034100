"""Moore Threads' GPUs: detected, described, and served by kernels made of torch's operators.

Sources: FlagGems' vendor table (no float64, int64) and the vendor's 100 TFLOP/s in bfloat16 for the S4000. MCCL
needs an S4000 or newer.
"""

from __future__ import annotations

from arcforge_core.contracts.device import TRAINING, Capabilities, Identity
from arcforge_hw.vendors.backend import VendorChip


class MooreThreads(VendorChip):
    """Moore Threads' GPUs."""

    name = "moore_threads"
    identity = Identity("moore_threads", "musa", "PrivateUse1", "mccl", triton="musa")
    capabilities = Capabilities(int64=True, bf16=True, fast_bf16=True, collectives=TRAINING)
    module = "torch_musa"
