"""Hygon's DCUs, which torch calls cuda.

Sources: FlagGems' vendor table (float64 and int64).
"""

from __future__ import annotations

from arcforge_hw.vendors.backend import VendorChip


class Hygon(VendorChip, vendor="hygon", triton="hcu", float64=True):
    """Hygon's DCUs, which torch calls cuda."""
