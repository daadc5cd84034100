"""Moore Threads' GPUs.

Sources: FlagGems' vendor table (no float64, int64) and the vendor's 100 TFLOP/s in bfloat16 for the S4000. MCCL
needs an S4000 or newer.
"""

from __future__ import annotations

from arcforge_hw.vendors.backend import VendorChip


class MooreThreads(
    VendorChip,
    vendor="moore_threads",
    triton="musa",
    device="musa",
    distributed="mccl",
    fast_bf16=True,
):
    """Moore Threads' GPUs."""
