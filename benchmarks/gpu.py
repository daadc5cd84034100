"""One NVIDIA GPU: the Triton kernels' errors, their times beside peers and floors, and training steps taken apart.

    python benchmarks/gpu.py [--only verify kernels step decode] [--items NAME ...] [--quick] [--warm] [--jobs N]
                             [--json FILE]

`verify` runs the conformance kit on the device for every Triton kernel, in float32 and bfloat16, and lists the error of
each case against float64. `kernels` times each one at GLM-5's sizes in bfloat16 beside torch (eager, compiled, SDPA,
FlexAttention), flash-linear-attention and FlashMLA (`ARCFORGE_FLASHMLA`, see `_gpu_flashmla.py`); a peer whose result
differs from ours is left out and named. `step` takes optimizer steps of `small` and of a model of 0.96B parameters,
with and without the Triton kernels: tokens per second, MFU, memory, and the parts of the time. `decode`
generates greedily.

Floors count products at the measured rate of bfloat16 products and bytes at the measured rate of a copy; the larger of
the two is the floor.

Each part runs in processes of its own, with a time limit for every item: a kernel that crashes or hangs loses no other
item, and results are written as they come. `--warm` compiles and compares without timing, `--jobs` items side by side,
which fills the caches of Triton and of the compiler for a later run. Nothing that is timed runs beside other work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _gpu_processes import end_when_asked, results_of

PARTS = ("verify", "kernels", "step", "decode")
LIMITS = {"verify": 150.0, "kernels": 80.0, "step": 110.0, "decode": 60.0}
"""Seconds that an item may take after the one before it, or after the start of its process."""
TOGETHER = ("kernels",)
"""Parts whose items share a process while none of them breaks it; importing torch takes seconds."""
BROKEN = 3
"""Exit status of a process whose device no longer answers; the item that did it has been reported."""


def part(name: str) -> Any:
    """Returns the module of a part: `names`, `run` and `row`."""
    return import_module(f"_gpu_{name}")


def work(name: str, items: Iterable[str], quick: bool, warm: bool) -> None:
    """Works items off in a process of the part: writes a line for each item, and further ones as its result grows."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # prints of libraries are no results
    module = part(name)
    options = {"warm": True} if warm and name == "kernels" else {}
    for item in items:
        known: dict[str, Any] = {}

        def tell(result: dict[str, Any], ended: bool = False, item: str = item, known: dict[str, Any] = known) -> None:
            known |= result
            out.write(json.dumps({"item": item, "ended": ended, "result": result}) + "\n")

        start = time.perf_counter()
        try:
            found = module.run(item, quick, tell, **options)
            tell({**found, "seconds": time.perf_counter() - start}, ended=True)
        except BaseException as fault:
            traceback.print_exc()
            text = f"{type(fault).__name__}: {str(fault).strip()[:600]}"
            tell({**known, "error_text": text, "seconds": time.perf_counter() - start}, ended=True)
            if "CUDA error" in text or "device-side assert" in text:
                out.flush()
                os._exit(BROKEN)


def about_machine() -> dict[str, Any]:
    """Returns the device, the driver's version and those of the libraries."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    for name in ("torch", "triton", "transformers", "fla-core"):
        try:
            found[name] = version(name)
        except ImportError:
            found[name] = None
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(0)
        found |= {"device": about.name, "memory_gb": about.total_memory / 2**30, "sms": about.multi_processor_count}
        found |= {"capability": torch.cuda.get_device_capability(0), "cuda": torch.version.cuda}
    return found


def run_part(name: str, items: list[str], options: argparse.Namespace, keep: Callable[[str, Any], None]) -> None:
    """Runs the items of a part and reports each result."""
    flags = ["--quick"] * options.quick + ["--warm"] * options.warm

    def run(some: list[str]) -> None:
        command = [sys.executable, __file__, *flags, "--work", name, "--items"]
        for item, result in results_of(command, some, LIMITS[name], BROKEN):
            keep(item, result)

    if options.jobs > 1 and (options.warm or name == "verify"):
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda item: run([item]), items))
    elif name in TOGETHER:
        run(items)
    else:
        for item in items:
            run([item])


def main() -> None:
    """Runs the parts that are asked for; ends with 1 if a kernel is wrong or an item has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--items", nargs="+", metavar="NAME", help="only items that contain one of these")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that everything runs")
    parser.add_argument("--warm", action="store_true", help="compile and compare without timing")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side where nothing is timed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--on-cpu", action="store_true", help="try the code in Triton's interpreter; times mean nothing"
    )
    parser.add_argument("--work", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.items, options.quick, options.warm)
        return
    if options.warm and (timed := set(options.only) - {"verify", "kernels"}):
        parser.error(f"--warm is of verify and kernels, not of {', '.join(sorted(timed))}: name them with --only")
    import torch

    if options.on_cpu:
        os.environ["TRITON_INTERPRET"], options.quick = "1", True
    elif not torch.cuda.is_available():
        raise SystemExit(
            "benchmarks/gpu.py needs a CUDA device, and torch finds none (--on-cpu tries the code without)"
        )
    end_when_asked()
    lock = threading.Lock()
    report: dict[str, Any] = {"benchmark": "gpu", "machine": about_machine(), "quick": options.quick, "ratios": {}}
    print(json.dumps(report["machine"]), flush=True)
    for name in options.only:
        module = part(name)
        items = [x for x in module.names(options.quick) if not options.items or any(y in x for y in options.items)]
        report[name], start = {}, time.perf_counter()
        print(f"\n{getattr(module, 'HEADING', name)}", flush=True)

        def keep(item: str, result: Any, name: str = name, module: Any = module) -> None:
            with lock:  # results of processes side by side
                report[name][item] = result
                print(module.row(item, result), flush=True)
                if hasattr(module, "ratios"):
                    report["ratios"] |= module.ratios(report[name])
                if options.json:
                    options.json.write_text(json.dumps(report, indent=1))

        run_part(name, items, options, keep)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    if wrong := failures(report):
        raise SystemExit("failed: " + ", ".join(wrong))


def failures(report: dict[str, Any]) -> list[str]:
    """Returns the items without a result, and the kernels that the kit does not pass."""
    return [
        f"{name} {item}"
        for name in PARTS
        for item, result in report.get(name, {}).items()
        if "error_text" in result or result.get("verdict") == "fail"
    ]


if __name__ == "__main__":
    main()
