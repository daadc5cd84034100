"""Kunlunxin's XPUs, which torch calls cuda: detected, described, and served by kernels made of torch's operators.

Sources: FlagGems' vendor table (no float64, int64). FlagCX lists gather as missing from XCCL; no collective here
uses it.
"""

from __future__ import annotations

from arcforge_core.contracts.device import TRAINING, Capabilities, Identity
from arcforge_hw.vendors.backend import VendorChip


class Kunlunxin(VendorChip):
    """Kunlunxin's XPUs, which torch calls cuda."""

    name = "kunlunxin"
    identity = Identity("kunlunxin", "cuda", "CUDA", "nccl", triton="xpu")
    capabilities = Capabilities(int64=True, bf16=True, collectives=TRAINING)
    module = ""
