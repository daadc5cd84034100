"""Cambricon's MLUs: detected, described, and served by kernels made of torch's operators.

Sources: FlagGems' vendor table (no float64, int64). Published peak rates contradict each other, so float32 stays
the default.
"""

from __future__ import annotations

from arcforge_core.contracts.device import TRAINING, Capabilities, Identity
from arcforge_hw.vendors.backend import VendorChip


class Cambricon(VendorChip):
    """Cambricon's MLUs."""

    name = "cambricon"
    identity = Identity("cambricon", "mlu", "PrivateUse1", "cncl", triton="mlu")
    capabilities = Capabilities(int64=True, bf16=True, collectives=TRAINING)
    module = "torch_mlu"
