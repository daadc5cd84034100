"""Measures this machine's own rates into a file of chips, at the current thread count."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_core.files.rundir import check_writable, write_text
from arcforge_core.model.adapt.quantised import MODES, QuantLinear
from arcforge_core.model.norm import Linear
from arcforge_core.ops import bind_ops
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.ops.processor import memory_bytes
from arcforge_core.ops.quant import INT8
from arcforge_core.train.throughput import matmul_rate
from arcforge_hw.planner.chip import FITS
from arcforge_hw.planner.probes import Like, fitted

NAME = "this_machine"
SIZE = 1024
READ_BYTES = 2**28


def measure_machine(path: Path, like: Like, dtype: torch.dtype, models: int) -> Result:
    """Writes the file and returns its numbers.

    Args:
        path: a new file.
        like: see `fitted`.
        dtype: of the unquantised weights of the models whose steps are measured.
        models: how many; 0 measures none.

    Raises:
        ConfigError: the file exists, or its folder cannot be written.
    """
    if path.exists():
        raise ConfigError("measure", str(path), "exists: name a new file")
    check_writable("measure", path.parent)
    source = f"measured by arcforge-plan on {torch.get_num_threads()} threads"
    values = {
        "memory": ((memory_bytes() or 0) / 1e9, "GB"),
        "bandwidth": (read_rate() / 1e9, "GB/s"),
        "fp32": (matmul_rate(torch.float32) / 1e12, "TFLOPS"),
        "bf16": (matmul_rate(torch.bfloat16) / 1e12, "TFLOPS"),
        "int8": (int8_rate() / 1e12, "TOPS"),
    }
    facts: dict[str, dict[str, Any]] = {
        name: {"value": _rounded(value), "unit": unit, "tier": "measured", "source": source}
        for name, (value, unit) in values.items()
        if value
    }
    one = {"value": 1, "tier": "measured", "source": "rates above are of whole programs"}
    facts["devices_per_node"] = {**one, "unit": "devices", "source": "this machine"}
    facts |= {name: {**one, "unit": "share"} for name in ("matmul_efficiency", "bandwidth_efficiency")}
    figures = {name: fact["value"] for name, fact in facts.items()}
    try:
        facts |= {FITS: dict(_costs(like, weights, dtype, models) for weights in ("none", *MODES))} if models else {}
    except UnknownComponentError as error:
        say(f"no steps are measured, plans with this file are rooflines: {error}")
    write_text(path, yaml.safe_dump({NAME: facts}, sort_keys=False))
    result = Result(path.parent, figures)
    result.show(f"{path}: use it with chips={path} chip={NAME}")
    return result


def _costs(like: Like, weights: str, dtype: torch.dtype, models: int) -> tuple[str, dict[str, dict[str, float]]]:
    formats, fits = fitted(like, weights, dtype, models)
    return formats, {kind: {name: _rounded(cost) for name, cost in fit.costs.items()} for kind, fit in fits.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def read_rate(rounds: int = 5) -> float:
    """Returns bytes/s of summing an array much larger than the caches, the best of `rounds`."""
    data = torch.ones(READ_BYTES // 4)
    return READ_BYTES / min(_seconds(data.sum) for _ in range(rounds))


def int8_rate(rounds: int = 7) -> float:
    """Returns operations/s of a square product of int8 weights with activations rounded by this machine's kernel."""
    layer = QuantLinear(Linear(SIZE, SIZE), INT8, rounds=True)
    bind_ops(layer, Ops(select_hardware("auto")).binder(torch.float32, "cpu", needs_grad=False))
    x = torch.randn(SIZE, SIZE)
    times = [_seconds(lambda: layer(x)) for _ in range(rounds + 2)]
    return 2 * SIZE**3 / statistics.median(times[2:])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
