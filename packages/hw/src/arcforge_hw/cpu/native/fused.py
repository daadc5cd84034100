"""Shared checks of a decoder layer's fused ops: most run for few decoded tokens, and products that may be quantised
are separate calls. Sizes that are not whole vectors use the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcforge_hw.cpu import native


def served(x_TD: Tensor, *widths: int) -> bool:
    """Returns whether C++ can be called: there are tokens, nothing is traced, rows of these widths need no padding."""
    return len(x_TD) > 0 and native.direct(x_TD) and all(native.whole_vectors(width, x_TD.dtype) for width in widths)


def tables(cos_TF: Tensor, sin_TF: Tensor, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns checked rotary tables in the activations' dtype."""
    native.check_shape("cos_TF", cos_TF, tokens, cos_TF.shape[1])
    native.check_shape("sin_TF", sin_TF, tokens, cos_TF.shape[1])
    return cos_TF.to(dtype), sin_TF.to(dtype)
