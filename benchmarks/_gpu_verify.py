"""The conformance kit on the device, kernel by kernel, and the error of every single case against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from _gpu_clock import device
from arcforge_core.testing.hardware_checks import check_kernel, relative_error
from arcforge_core.testing.large_inputs import large_case
from arcforge_core.testing.op_inputs import op_cases
from arcforge_hw.configs import CudaConfig
from arcforge_hw.cuda.backend import Cuda, triton_kernels

OPS = (
    "rms_norm", "rope", "swiglu", "indexer_topk", "indexer_kl", "sparse_mla", "mla_decode", "linear_cross_entropy",
    "newton_schulz", "gated_delta_rule",
)  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def names(quick: bool) -> list[str]:
    """Returns the items: an op and a dtype each; without a GPU float32 alone."""
    dtypes = DTYPES if device() == "cuda" else ["float32"]
    return [f"{op} {dtype}" for op in OPS[: 2 if quick and device() == "cpu" else None] for dtype in dtypes]


def run(name: str, quick: bool, tell: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Returns the verdict of the kit, and each case's relative error, forward and with gradients."""
    op, dtype = name.split()
    [kernel] = [k for k in (*triton_kernels(), *Cuda(CudaConfig()).kernels()) if k.op == op and k.priority == 1][:1]
    found: dict[str, Any] = {"kernel": kernel.name, "cases": {}}
    for case in [*op_cases(op), *([] if quick else [large_case(op)])]:
        for with_grad in (False, True) if case.grad else (False,):
            label = case.name + ", gradients" * with_grad
            try:
                error = relative_error(kernel.function, case, device(), DTYPES[dtype], with_grad, strided=with_grad)
                found["cases"][label] = error
            except Exception as fault:  # one case must not lose the others
                found["cases"][label] = f"{type(fault).__name__}: {str(fault)[:300]}"
                if "CUDA error" in str(fault):  # no later call of this process would work
                    raise
            tell(found)
    if device() == "cpu":  # the kit's large cases take the interpreter minutes
        wrong = [x for x in found["cases"].values() if isinstance(x, str)]
        return found | {"verdict": "fail" if wrong else "tried"}
    verdict = asdict(check_kernel(kernel, device(), DTYPES[dtype]))
    return found | {key: verdict[key] for key in ("error", "tolerance", "verdict", "reason")}


def row(name: str, result: dict[str, Any]) -> str:
    """Returns a line of the table."""
    errors = [x for x in result.get("cases", {}).values() if isinstance(x, float)]
    faults = [f"{k}: {x}" for k, x in result.get("cases", {}).items() if isinstance(x, str)]
    worst = f"{max(errors):.1e}" if errors else "-"
    why = result.get("error_text") or "; ".join(faults) or result.get("reason", "")
    return f"{name:<32}{result.get('verdict', 'error'):<10}{worst:>9}  {why[:160]}"
