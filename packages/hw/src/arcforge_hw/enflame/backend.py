"""Enflame's GCUs.

Sources: FlagGems' vendor table (neither float64 nor int64) and vllm-gcu (a grid has at most 65,535 blocks). That
torch calls its collectives ``eccl`` is not confirmed.
"""

from __future__ import annotations

from arcforge_hw.vendors.backend import VendorChip


class Enflame(VendorChip, vendor="enflame", triton="gcu", device="gcu", distributed="eccl", int64=False, tokens=65_535):
    """Enflame's GCUs."""
