"""The processor that this process may use: its model, its usable cores, and its rates of matrix products."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import torch

from arcforge_core.files.cache import cache_folder
from arcforge_core.files.cgroups import cgroup_quota

CPU_INFO = Path("/proc/cpuinfo")
SIZE = 512
"""Rows and columns of the measured products."""
SECONDS = 0.25
"""Time of a measurement of all dtypes, after one product of each."""


def allowed_cores() -> int:
    """Returns the cores that the affinity of this process and the quotas of its control groups allow, at least 1.

    A quota of 1.5 cores counts as 1: threads that wait for each other are as slow as the one that is out of time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(cores, cgroup_quota())))


def memory_bytes() -> int:
    """Returns the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_threads() -> int:
    """Returns `allowed_cores`, or ``OMP_NUM_THREADS`` if that is set to less.

    Torchrun sets the variable to 1 for several processes on a machine, so 1 is not a limit there.
    """
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    by_torchrun = text == "1" and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1
    limit = int(text) if text.isdecimal() and not by_torchrun else 0
    return min(allowed_cores(), limit) if limit else allowed_cores()


def processor_name() -> str:
    """Returns the processor's name where the system gives one, else its architecture."""
    return _cpu_info("model name") or platform.machine()


def _cpu_info(name: str) -> str:
    """Returns a field of the first processor in ``/proc/cpuinfo``; empty if it is not there."""
    if not CPU_INFO.exists():  # not Linux
        return ""
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name), "")


def product_rates() -> dict[str, float]:
    """Returns FLOP/s of square products in ``bf16`` and ``fp32``.

    They are measured once and kept in ``processor/`` of the user's cache by model of processor, torch version and
    number of threads, so that all runs on a machine decide alike. The first process that writes them decides.
    """
    model = " ".join(_cpu_info(field) for field in ("cpu family", "model", "stepping"))  # many share a name
    name = f"{processor_name()}, {model}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    path = cache_folder("processor") / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    known = _read_rates(path)
    if known is None:
        known = measure_rates()
        try:
            _write_once(path, json.dumps({"processor": name, "flops": known}))
        except OSError:  # a cache that cannot be written only costs time
            return known
    return _read_rates(path) or known


def measure_rates() -> dict[str, float]:
    """Measures `product_rates`: alternating products, the fastest of each, which other programs disturb least."""
    factors = {
        name: torch.randn(SIZE, SIZE).to(dtype) for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
    }
    fastest = dict.fromkeys(factors, float("inf"))
    for factor in factors.values():
        torch.mm(factor, factor)
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or float("inf") in fastest.values():
        for name, factor in factors.items():
            start = time.perf_counter()
            torch.mm(factor, factor)
            fastest[name] = min(fastest[name], time.perf_counter() - start)
    return {name: 2 * SIZE**3 / seconds for name, seconds in fastest.items()}


def _read_rates(path: Path) -> dict[str, float] | None:
    """Returns the rates in a file, or None if it is missing or damaged."""
    try:
        flops = json.loads(path.read_text(encoding="utf-8"))["flops"]
        return {name: float(flops[name]) for name in ("bf16", "fp32")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_once(path: Path, text: str) -> None:
    """Writes a file atomically; one that another process has written meanwhile stays, unless it is damaged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if _read_rates(path) is None:
            path.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)
