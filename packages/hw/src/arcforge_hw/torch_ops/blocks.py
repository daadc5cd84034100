"""Rows of products in bfloat16 on CPUs come in whole blocks.

oneDNN compiles a kernel for each new number of rows, which takes as long as a product of a thousand rows. Padded to
whole blocks, few different numbers occur.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 32
"""Rows per block: larger blocks need fewer kernels but more padding."""


def in_blocks(x: Tensor) -> bool:
    """Returns whether rows of products with x are padded to whole blocks."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def whole(rows: int) -> int:
    """Returns the rows of as many whole blocks as hold these."""
    return -(-rows // BLOCK) * BLOCK
