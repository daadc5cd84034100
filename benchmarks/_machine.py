"""What every benchmark notes about the machine, measured in its own process at its own thread count."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any


def describe_machine(threads: int) -> dict[str, Any]:
    """Returns processor, versions, load average, matmul rates, read bandwidth, and what calibration chose.

    Products in bfloat16 are measured where the processor has instructions for them; others take a hundred times longer.
    """
    import torch

    from arcforge_core.ops.compat import has_bf16, why_precision
    from arcforge_core.ops.hardware import select_hardware
    from arcforge_core.ops.processor import processor_model
    from arcforge_core.train.throughput import matmul_rate

    torch.set_num_threads(threads)
    hardware: Any = select_hardware("cpu")
    return {
        "processor": processor_model(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("arcforge-core", "torch", "hydra-core")},
        "matmul_gflops": matmul_rate(torch.float32) / 1e9,
        **({"matmul_gflops_bf16": matmul_rate(torch.bfloat16) / 1e9} if has_bf16() else {}),
        "read_gb_per_s": read_bandwidth() / 1e9,
        "choices": [f"precision=auto: {why_precision('cpu')}", *getattr(hardware, "choices", list)()],
    }


def processor(threads: int) -> str:
    """Returns the processor, its instructions and the number of threads: ratios of other ones are not comparable."""
    import torch

    from arcforge_core.ops.processor import processor_model

    return named_processor(processor_model(), torch.backends.cpu.get_cpu_capability(), threads)


def named_processor(model: object, instructions: object, threads: object) -> str:
    """Returns the three in words, as far as they are known."""
    parts = (model, instructions, f"{threads} thread{'s' * (threads != 1)}" if threads else "")
    return ", ".join(str(part) for part in parts if part)


def read_bandwidth(size: int = 2**28, rounds: int = 5) -> float:
    """Returns bytes/s of summing an array much larger than the caches, the best of `rounds`."""
    import torch

    data = torch.ones(size // 4)
    best = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        data.sum()
        best = max(best, size / (time.perf_counter() - start))
    return best


def peak_growth(run: Callable[[], object]) -> float:
    """Returns the megabytes by which a call raises this process's peak memory (Linux)."""
    status = Path("/proc/self/status")

    def kilobytes(field: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1])

    from arcforge_core.ops.allocator import return_freed_memory

    return_freed_memory()  # else the call takes it without growth
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of what came before
    before = kilobytes("VmRSS")
    run()
    return (kilobytes("VmHWM") - before) / 1024
