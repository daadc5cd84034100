"""What differs between torch versions and processors, asked in one place."""

from __future__ import annotations

import functools
import platform

import torch


@functools.cache
def fast_bf16(device_type: str) -> bool:
    """Returns whether bfloat16 matrix products are faster than float32 ones on this device.

    A CPU without bfloat16 instructions multiplies such matrices some hundred times slower than float32.
    """
    if device_type != "cpu":
        return True
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
