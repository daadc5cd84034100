"""The processor that this process may use: its model, its usable cores and its memory."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from arcforge_core.files.cgroups import cgroup_quota

CPU_INFO = Path("/proc/cpuinfo")
VECTORS = re.compile(r"(?:s?sse|avx|amx|fma|f16c|bmi|asimd|sve|sme|bf16|i8mm|fphp)\w*")
"""Instructions that calculations depend on, as ``/proc/cpuinfo`` names them."""
MISSED = {
    "avx2": "vectors of 8 numbers",
    "avx512f": "vectors of 16",
    "avx512_bf16": "bfloat16 products",
    "avx512_vnni": "int8 products",
}
"""Instructions of x86 processors that kernels use, and for what."""


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


def processor_model() -> str:
    """Returns the processor's name with family, model and stepping: many processors share a name."""
    return ", ".join((processor_name(), " ".join(_cpu_info(field) for field in ("cpu family", "model", "stepping"))))


def vector_instructions() -> list[str]:
    """Returns the instructions of `VECTORS` that the system reports; a hypervisor may hide some of the processor's."""
    flags = (_cpu_info("flags") or _cpu_info("Features")).split()
    return sorted(flag for flag in set(flags) if VECTORS.fullmatch(flag))


def missed_instructions() -> str:
    """Returns which instructions an x86 processor does not report, and their use; empty where all are there."""
    known = vector_instructions()
    if "sse2" not in known:  # another kind of processor, or an unknown one
        return ""
    return ", ".join(f"{name} ({use})" for name, use in MISSED.items() if name not in known)


def _cpu_info(name: str) -> str:
    """Returns a field of the first processor in ``/proc/cpuinfo``; empty if it is not there."""
    if not CPU_INFO.exists():  # not Linux
        return ""
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name), "")
