"""Kunlunxin's XPUs, which torch calls cuda.

Sources: FlagGems' vendor table (no float64, int64). FlagCX lists gather as missing from XCCL; no collective here
uses it.
"""

from __future__ import annotations

from arcforge_hw.vendors.backend import VendorChip


class Kunlunxin(VendorChip, vendor="kunlunxin", triton="xpu"):
    """Kunlunxin's XPUs, which torch calls cuda."""
