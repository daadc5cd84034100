"""Shared by the wrappers of Triton kernels: block sizes, and checks of devices and dtypes.

Kernels run on a GPU, or in Triton's interpreter on CPU tensors if ``TRITON_INTERPRET=1`` was set before Triton was
imported. The interpreter computes in numpy, without bfloat16: it supports only float32 and float64.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from pathlib import Path

import torch
from torch import Tensor

TUNING = Path(__file__).with_name("tuning.json")
"""Tile sizes, warps and stages by kernel, for a compute capability such as ``sm_90`` or ``default``."""


def power_of_two(n: int, least: int = 1) -> int:
    """Returns the smallest power of two that is at least `n` and `least`."""
    return max(least, 1 << max(0, n - 1).bit_length())


def row_warps(block: int) -> int:
    """Returns the number of warps whose registers hold a row of this many values."""
    return min(16, max(1, block // 512))


def interpreted() -> bool:
    """Returns whether Triton interprets kernels instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def missing_triton() -> str:
    """Returns the reason why there are no Triton kernels; empty if there are."""
    return "" if importlib.util.find_spec("triton") else "triton is not installed: pip install 'arcforge-hw[cuda]'"


def check(*tensors: Tensor) -> None:
    """Raises `ValueError` unless kernels can read all tensors and support their dtypes."""
    for x in tensors:
        if x.device != tensors[0].device:
            raise ValueError(f"a Triton kernel needs its tensors on one device, not {tensors[0].device} and {x.device}")
        if x.device.type == "cpu" and not interpreted():
            raise ValueError("a Triton kernel reads CPU tensors only under TRITON_INTERPRET=1")
        if interpreted() and x.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(f"Triton's interpreter is incorrect in {x.dtype}: use float32")


@functools.cache
def tuning() -> dict[str, dict[str, dict[str, int]]]:
    """Returns the launch options of kernels by device."""
    table: dict[str, dict[str, dict[str, int]]] = json.loads(TUNING.read_text(encoding="utf-8"))
    return table


@functools.cache
def tuned(kernel: str) -> dict[str, int]:
    """Returns a kernel's launch options on this device."""
    table = tuning()
    device = "sm_{}{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else "default"
    return {**table["default"][kernel], **table.get(device, {}).get(kernel, {})}
