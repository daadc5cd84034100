"""Memory that a process keeps: faults of pages, which the operating system counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arcforge_core.ops import allocator, hardware

FAULTS = """
import ctypes, resource
import torch
from arcforge_core.ops.hardware import select_hardware

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: faults of ordinary pages
torch.set_num_threads(1)

def faults():
    found = []
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        parts = [torch.ones(6 << 20) for _ in range(3)]  # 24 MiB each
        del parts
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(found[6:])

ctypes.CDLL(None).mallopt(-3, 65536)  # as glibc does before a process has freed a tensor
print(faults())
select_hardware("cpu")
print(faults())
"""
MADE = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
MAPS = Path("/proc/self/maps")
glibc = pytest.mark.skipif(not MAPS.exists() or "libc.so.6" not in MAPS.read_text(), reason="needs glibc")


@glibc
def test_freed_memory_is_kept_for_the_next_step() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in MADE}
    command = [sys.executable, "-c", FAULTS]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, after = map(int, told.stdout.split())
    pages = (72 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert before >= pages and after < pages / 100


def settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[int]:
    """Returns the numbers of the settings that are made in the C library."""
    found: list[int] = []
    for name in MADE:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(allocator, "_function", lambda name: lambda number, value: found.append(number))
    allocator.keep_freed_memory()
    return found


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch) == [-3, -1]
    assert settings(monkeypatch, MALLOC_MMAP_THRESHOLD_="65536") == [-1]
    assert settings(monkeypatch, GLIBC_TUNABLES="glibc.malloc.check=0:glibc.malloc.trim_threshold=65536") == [-3]


def test_a_c_library_without_the_functions_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_function", lambda name: None)
    allocator.keep_freed_memory()
    allocator.return_freed_memory()


@pytest.mark.parametrize("name", ["cpu", "auto"])
def test_hardware_that_is_chosen_sets_up_the_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    monkeypatch.setattr(hardware, "keep_freed_memory", lambda: called.append(True))
    on_cpu = hardware.select_hardware(name).identity.device == "cpu"
    assert bool(called) == on_cpu
