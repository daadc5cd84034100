"""A step's device time by kind of kernel and by kernel, and the time in which the device has nothing to do."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

KINDS = {
    "attention": r"sparse_|decode_parts|flash|fmha|index_scores|kl_|[sS]oft[mM]ax|attention",
    "selection": r"topk|radix|sort|Sort",
    "matrix products": r"gemm|nvjet|cutlass|cublas|xmma|wgmma|grouped|splitK|gemv",
    "Newton-Schulz, symmetric": r"symmetric_product",
    "optimizer": r"adam|multi_tensor|foreach|lp_norm|addcmul|addcdiv|lerp",
    "norm, rotation, SwiGLU": r"rms_norm|rope_kernel|swiglu|silu|layer_norm",
    "loss": r"cross_entropy|nll_loss",
    "gather and scatter": r"index|gather|scatter|embedding|searchsorted|bincount|histogram|cumsum|scan",
    "copies and casts": r"copy|Copy|Memcpy|CatArray|cast|transpose|direct_copy",
    "filling": r"fill|Fill|Memset|zero",
    "reductions": r"reduce|Reduce|norm",
    "elementwise": r"elementwise|vectorized",
}
"""The first that fits a kernel's name is its kind."""


def kind_of(kernel: str) -> str:
    """Returns the kind of a kernel."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel)), "other")


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of spans."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def grouped(kernels: list[tuple[str, float, float]], top: int = 12) -> dict[str, Any]:
    """Returns the parts of the time from the first kernel to the last.

    Args:
        kernels: name, start and end in microseconds.
        top: number of kernels that are listed.
    """
    if not kernels:
        return {}
    whole = max(end for _, _, end in kernels) - min(start for _, start, _ in kernels)
    kinds: dict[str, list[float]] = defaultdict(list)
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, start, end in kernels:
        kinds[kind_of(name)].append(end - start)
        by_name[name].append(end - start)
    parts = {
        kind: {"ms": sum(times) / 1e3, "share": sum(times) / whole, "calls": len(times)}
        for kind, times in kinds.items()
    }
    idle = whole - busy((start, end) for _, start, end in kernels)
    parts["idle"] = {"ms": idle / 1e3, "share": idle / whole, "calls": 0}
    listed = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:top]
    return {
        "span_ms": whole / 1e3,
        "launches": len(kernels),
        "kinds": dict(sorted(parts.items(), key=lambda item: -item[1]["ms"])),
        "top": [{"name": name[:300], "ms": sum(times) / 1e3, "calls": len(times)} for name, times in listed],
    }


def profiled(job: Callable[[], Any]) -> dict[str, Any]:
    """Runs a job under the profiler, which watches the device alone, and returns `grouped` of its kernels."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        job()
        torch.cuda.synchronize()
    spans = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
    return grouped(spans)
