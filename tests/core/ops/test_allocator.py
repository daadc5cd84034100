"""Memory that a process keeps: faults of pages, which the operating system counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = """
import resource, sys
import torch
from arcforge_core.ops.hardware import select_hardware

if sys.argv[1] == "keep":
    select_hardware("cpu")
torch.set_num_threads(1)
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [torch.ones(6 << 20) for _ in range(3)]  # 24 MiB each
    del parts
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""


def faults(argument: str, **variables: str) -> int:
    """Returns the faults of taking 72 MiB for the fourth time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    told = subprocess.run(
        [sys.executable, "-c", FAULTS, argument],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(told.stdout)


@pytest.mark.skipif(not Path("/proc/self/maps").exists() or "libc.so.6" not in Path("/proc/self/maps").read_text(),
                    reason="glibc's allocator")  # fmt: skip
def test_freed_memory_is_kept_for_the_next_step() -> None:
    pages = (72 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert faults("keep") < pages / 100
    assert faults("leave") > pages / 4
    assert faults("keep", MALLOC_MMAP_THRESHOLD_="65536") > pages / 4  # what a user has set stays
