"""Differences between torch versions and processors."""

from __future__ import annotations

import functools
import os
import platform

import torch

from arcforge_core.ops.calibration import product_rates
from arcforge_core.ops.hardware import capabilities_of


@functools.cache
def fast_bf16(device_type: str) -> bool:
    """Returns whether bfloat16 matrix products are faster than float32 ones on this device; on a CPU, as measured."""
    if (declared := capabilities_of(device_type).fast_bf16) is not None:
        return declared
    if not has_bf16():
        return False
    rates = product_rates()
    return rates["bf16"] > rates["fp32"]


def measured(device_type: str) -> bool:
    """Returns whether `fast_bf16` is a measurement; deterministic work must not depend on one, and takes float32."""
    return capabilities_of(device_type).fast_bf16 is None


def why_precision(device_type: str, deterministic: bool = False) -> str:
    """Returns in a few words why ``precision=auto`` is what it is on this device."""
    if deterministic and measured(device_type):
        return "fp32: deterministic results depend on no measurement"
    if (declared := capabilities_of(device_type).fast_bf16) is not None:
        return f"{'bf16' if declared else 'fp32'} on {device_type}"
    if not has_bf16():
        return "fp32: this processor has no bfloat16 instructions"
    rates = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in product_rates().items())
    return f"{'bf16' if fast_bf16(device_type) else 'fp32'}: measured {rates}"


def has_bf16() -> bool:
    """Returns whether the processor has bfloat16 instructions; without, torch's products take 100 times as long."""
    if os.environ.get("ATEN_CPU_CAPABILITY", "").lower() in ("avx2", "default"):  # as if the processor had no others
        return False
    if platform.machine() in ("x86_64", "AMD64"):
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
