"""MetaX's GPUs, which torch calls cuda.

Sources: FlagGems' vendor table (float64 and int64) and a measurement of the C550 (83% of its rate in bfloat16). The
C500 has no fp8.
"""

from __future__ import annotations

from arcforge_hw.vendors.backend import VendorChip


class Metax(VendorChip, vendor="metax", triton="metax", float64=True, fast_bf16=True):
    """MetaX's GPUs, which torch calls cuda."""
