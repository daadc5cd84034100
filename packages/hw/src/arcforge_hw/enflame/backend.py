"""Enflame's GCUs: detected, described, and served by kernels made of torch's operators.

Sources: FlagGems' vendor table (neither float64 nor int64) and vllm-gcu (a grid has at most 65,535 blocks). That
torch calls its collectives ``eccl`` is not confirmed.
"""

from __future__ import annotations

from arcforge_core.contracts.device import TRAINING, Capabilities, Identity
from arcforge_hw.vendors.backend import VendorChip


class Enflame(VendorChip):
    """Enflame's GCUs."""

    name = "enflame"
    identity = Identity("enflame", "gcu", "PrivateUse1", "eccl", triton="gcu")
    capabilities = Capabilities(bf16=True, tokens=65_535, collectives=TRAINING)
    module = "torch_gcu"
