"""Times on a GPU, its measured rates, and how far two results differ.

`triton.testing.do_bench` overwrites the L2 cache before each call, so inputs come from memory. On the CPU, where only
the code of the benchmark is tried, a call is timed by the clock.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Job = Callable[[], Any]


@dataclass(frozen=True)
class Rates:
    """Rates of the device in this process: FLOP/s of bfloat16 products, bytes/s read and written by a copy."""

    flops_per_s: float
    bytes_per_s: float

    def floor_ms(self, flops: float, bytes_: float) -> float:
        """Returns the milliseconds that work takes at these rates."""
        return 1e3 * max(flops / self.flops_per_s, bytes_ / self.bytes_per_s)


def device() -> str:
    """Returns the device of this process."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def dtype() -> torch.dtype:
    """Returns bfloat16; float32 in Triton's interpreter, which is incorrect in bfloat16."""
    return torch.bfloat16 if device() == "cuda" else torch.float32


def median_ms(job: Job, rep: int = 100) -> float:
    """Returns the median milliseconds of a call, over about `rep` milliseconds of calls."""
    if device() == "cuda":
        from triton.testing import do_bench

        found: float = do_bench(job, warmup=25, rep=rep, return_mode="median")
        return found
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


@functools.cache
def rates() -> Rates:
    """Measures the rate of large products and of a large copy, each the median of its calls."""
    side, values = (8192, 1 << 29) if device() == "cuda" else (256, 1 << 16)
    a, b = (torch.randn(side, side, device=device(), dtype=dtype()) for _ in range(2))
    product = median_ms(lambda: torch.mm(a, b), rep=300)
    source = torch.empty(values, device=device(), dtype=dtype()).zero_()
    target = torch.empty_like(source)
    copy = median_ms(lambda: target.copy_(source), rep=300)
    return Rates(2e3 * side**3 / product, 2e3 * source.nbytes / copy)


def tensors(result: Any) -> list[Tensor]:
    """Returns the tensors of a result."""
    return [result] if isinstance(result, Tensor) else [x for x in result if isinstance(x, Tensor)]


def difference(one: Any, two: Any) -> float:
    """Returns the largest difference of results' tensors: the relative norm, for indices the share not in common."""
    return max(_apart(a, b) for a, b in zip(tensors(one), tensors(two), strict=True))


def _apart(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        raise ValueError(f"shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if not a.is_floating_point():
        return _not_in_common(a, b)
    scale = float(torch.linalg.vector_norm(b, dtype=torch.float32))
    apart = float(torch.linalg.vector_norm(a.float() - b.float()))
    return apart / scale if scale else apart


def _not_in_common(a_TK: Tensor, b_TK: Tensor) -> float:
    keys = 2 + max(int(a_TK.max()), int(b_TK.max()))
    marks = [
        torch.zeros(len(x), keys, dtype=torch.bool, device=x.device).scatter_(1, x + 1, True) for x in (a_TK, b_TK)
    ]
    for mark in marks:
        mark[:, 0] = False  # padding
    return 1.0 - float((marks[0] & marks[1]).sum()) / max(1, *(int(mark.sum()) for mark in marks))


def with_gradients(fn: Callable[..., Tensor], leaves: Sequence[Tensor], rest: Sequence[Any] = ()) -> Job:
    """Returns a job that calls ``fn(*leaves, *rest)`` and differentiates by the leaves: (output, *gradients)."""
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    cotangents: list[Tensor] = []

    def job() -> tuple[Tensor, ...]:
        out = fn(*leaves, *rest)
        if not cotangents:
            torch.manual_seed(1)
            cotangents.append(torch.ones_like(out) if out.ndim == 0 else torch.randn_like(out))
        return out.detach(), *torch.autograd.grad(out, leaves, cotangents[0])

    return job


def backward_alone(fn: Callable[..., Tensor], leaves: Sequence[Tensor], rest: Sequence[Any] = ()) -> Job:
    """Returns a job that differentiates one call, made here: the gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    out = fn(*leaves, *rest)
    torch.manual_seed(1)
    cotangent = torch.ones_like(out) if out.ndim == 0 else torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, cotangent, retain_graph=True)


def compiled(fn: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
    """Returns the function by `torch.compile`, for these shapes only."""
    made: Callable[..., Any] = torch.compile(fn, mode=mode, dynamic=False)
    return made


TUNED = "max-autotune-no-cudagraphs"
