"""MetaX's GPUs, which torch calls cuda: detected, described, and served by kernels made of torch's operators.

Sources: FlagGems' vendor table (float64 and int64) and a measurement of the C550 (83% of its rate in bfloat16). The
C500 has no fp8.
"""

from __future__ import annotations

from arcforge_core.contracts.device import TRAINING, Capabilities, Identity
from arcforge_hw.vendors.backend import VendorChip


class Metax(VendorChip):
    """MetaX's GPUs, which torch calls cuda."""

    name = "metax"
    identity = Identity("metax", "cuda", "CUDA", "nccl", triton="metax")
    capabilities = Capabilities(float64=True, int64=True, bf16=True, fast_bf16=True, collectives=TRAINING)
    module = ""
