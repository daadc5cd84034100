"""Cambricon's MLUs.

Sources: FlagGems' vendor table (no float64, int64). Published peak rates contradict each other, so float32 stays
the default.
"""

from __future__ import annotations

from arcforge_hw.vendors.backend import VendorChip


class Cambricon(VendorChip, vendor="cambricon", triton="mlu", device="mlu", distributed="cncl"):
    """Cambricon's MLUs."""
