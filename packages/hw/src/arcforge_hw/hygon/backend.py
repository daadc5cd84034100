"""Hygon's DCUs, which torch calls cuda: detected, described, and served by kernels made of torch's operators.

Sources: FlagGems' vendor table (float64 and int64).
"""

from __future__ import annotations

from arcforge_core.contracts.device import TRAINING, Capabilities, Identity
from arcforge_hw.vendors.backend import VendorChip


class Hygon(VendorChip):
    """Hygon's DCUs, which torch calls cuda."""

    name = "hygon"
    identity = Identity("hygon", "cuda", "CUDA", "nccl", triton="hcu")
    capabilities = Capabilities(float64=True, int64=True, bf16=True, collectives=TRAINING)
    module = ""
