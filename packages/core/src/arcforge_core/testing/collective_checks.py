"""Tests the collectives of a backend in processes of their own, and its claims about them, both ways."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from arcforge_core.contracts.device import COLLECTIVES
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.testing.device_checks import property_result
from arcforge_core.testing.exchanges import Rank, judge
from arcforge_core.testing.hardware_checks import DECLINED, CheckResult

WORLD = 3
"""Processes: with two, an order of ranks that is reversed twice looks right."""
START = 120.0
"""Seconds until all processes must have joined."""
EXCHANGE = 20.0
"""Seconds after which an exchange that does not return is a fault."""


def check_collectives(hardware: Hardware, build: Callable[[], Hardware], seed: int = 0) -> Iterator[CheckResult]:
    """Yields one result for each collective; their `kernel` is empty.

    Args:
        hardware: a usable backend.
        build: builds it again in each of the processes; it is pickled.
        seed: of values and splits.
    """
    device, claims = hardware.identity.device, hardware.capabilities.collectives
    world = _processes(hardware)
    if world < 2:
        reason = f"this machine has one {device}, and an exchange needs two"
        yield from (CheckResult(f"collective {n}", "", "", 0.0, 0.0, DECLINED, reason) for n in COLLECTIVES)
        return
    # what is not claimed may hang, so it comes last
    names = sorted(COLLECTIVES, key=lambda name: name not in claims)
    found = run_processes(build, world, names, seed)
    for name in names:
        fault = found.get(name, "the processes did not get that far")
        if name not in claims:
            fault = "" if fault else f"capabilities say no {name}, but {hardware.identity.collectives} has it"
        yield property_result(f"collective {name}", fault)


def _processes(hardware: Hardware) -> int:
    """Returns the number of processes: gloo's share the host, and others have a device each."""
    if hardware.identity.device == "cpu" or hardware.identity.collectives == "gloo":
        return WORLD
    return min(WORLD, int(torch.get_device_module(hardware.identity.device).device_count()))


def run_processes(build: Callable[[], Hardware], world: int, names: list[str], seed: int) -> dict[str, str]:
    """Returns the fault of each collective, in the order of the names, up to the first that does not return.

    A process appends a line to its file after each collective, so one that hangs or crashes shows how far it came.
    """
    context: Any = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(build, rank, world, folder, names, seed) for rank in range(world)]
        processes = [context.Process(target=worker, args=each, daemon=True) for each in arguments]
        for process in processes:
            process.start()
        try:
            return _collected(processes, Path(folder), names)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collected(processes: list[BaseProcess], folder: Path, names: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("", *names):  # the first line says that the process has joined
        end = time.monotonic() + (EXCHANGE if name else START)
        lines = [_line(folder / str(rank), len(found) + bool(name)) for rank in range(len(processes))]
        while None in lines and time.monotonic() < end and any(process.is_alive() for process in processes):
            time.sleep(0.02)
            lines = [_line(folder / str(rank), len(found) + bool(name)) for rank in range(len(processes))]
        faults = [line for line in lines if line]
        late = ", ".join(str(rank) for rank, line in enumerate(lines) if line is None)
        if late and not faults:
            faults = [f"rank {late} did not {'return' if name else 'join the others'}"]
        if not name and faults:
            return dict.fromkeys(names, faults[0])
        if name:
            found[name] = "; ".join(faults)
        if late:
            break
    return found


def _line(file: Path, number: int) -> str | None:
    """Returns a complete line of a file, or None if it is not there yet."""
    if not file.exists():
        return None
    lines = file.read_text(encoding="utf-8").split("\n")
    return str(json.loads(lines[number])) if number < len(lines) - 1 else None


def worker(build: Callable[[], Hardware], rank: int, world: int, folder: str, names: list[str], seed: int) -> None:
    """Runs the exchanges of one process."""

    def write(fault: str) -> None:
        with open(Path(folder, str(rank)), "a", encoding="utf-8") as file:
            file.write(json.dumps(fault) + "\n")

    try:
        hardware = build()
        device, backend = hardware.identity.device, hardware.identity.collectives
        if device != "cpu":
            module = torch.get_device_module(device)
            module.set_device(rank % int(module.device_count()))
        store = dist.FileStore(str(Path(folder, "store")), world)  # type: ignore[attr-defined]
        limit = timedelta(seconds=START)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    except Exception as error:  # whatever the vendor's runtime raises
        write(f"rank {rank} raises {type(error).__name__}: {str(error).splitlines()[0]}")
        return
    write("")
    dtypes = (torch.float32, torch.int64) if hardware.capabilities.int64 else (torch.float32,)
    for name in names:
        write(judge(name, Rank(rank, world, device, store, seed=seed), dtypes))
