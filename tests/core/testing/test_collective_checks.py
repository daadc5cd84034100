"""The processes that test a backend's collectives, those that hang included."""

import dataclasses
import functools
import json
import re

import pytest
import torch

from arcforge_core.configs import TorchCpuConfig
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.testing import collective_checks
from arcforge_core.testing.collective_checks import _collected, check_collectives, run_processes

BUILD = functools.partial(TorchCpu, TorchCpuConfig())
NAMES = ["all_reduce", "barrier"]


class Process:
    """A process that has ended, or hangs."""

    def __init__(self, alive):
        self.is_alive = lambda: alive


def collected(folder, *lines, alive=False):
    """Returns what the kit makes of these lines of the processes' files."""
    for rank, written in enumerate(lines):
        (folder / str(rank)).write_text("".join(json.dumps(line) + "\n" for line in written))
    return _collected([Process(alive) for _ in lines], folder, NAMES)


@pytest.mark.slow(reason="starts three processes that import torch")
def test_a_cpu_passes_and_a_false_no_is_found():
    backend = BUILD()
    backend.capabilities = dataclasses.replace(
        backend.capabilities, collectives=backend.capabilities.collectives - {"barrier"}
    )
    results = {result.op: result.reason for result in check_collectives(backend, BUILD)}
    assert results.pop("collective barrier") == "capabilities say no barrier, but gloo has it"
    assert len(results) == 6 and set(results.values()) == {""}


def test_faults_of_all_ranks_are_told(tmp_path):
    found = collected(tmp_path, ["", "", ""], ["", "rank 1: other", ""], ["", "rank 2: other", ""])
    assert found == {"all_reduce": "rank 1: other; rank 2: other", "barrier": ""}


def test_a_rank_that_hangs_is_named_and_nothing_after_it_is_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(collective_checks, "EXCHANGE", 0.05)
    assert collected(tmp_path, ["", ""], [""], alive=True) == {"all_reduce": "rank 1 did not return"}


def test_a_rank_that_crashes_is_not_waited_for(tmp_path):
    assert collected(tmp_path, ["", "", ""], ["", ""])["barrier"] == "rank 1 did not return"
    assert collected(tmp_path, [""], []) == dict.fromkeys(NAMES, "rank 1 did not join the others")


def test_a_backend_that_cannot_start_fails_every_claim(tmp_path):
    said = "rank 0 raises ValueError: no driver"
    assert collected(tmp_path, [said], [""]) == dict.fromkeys(NAMES, said)


def test_a_claim_beyond_a_hang_is_not_passed(monkeypatch):
    monkeypatch.setattr(collective_checks, "run_processes", lambda *_: {"all_reduce": "rank 1 did not return"})
    results = {result.op: result for result in check_collectives(BUILD(), BUILD)}
    assert {result.verdict for result in results.values()} == {"fail"}
    assert results["collective barrier"].reason == "the processes did not get that far"


def test_one_device_is_not_enough(monkeypatch):
    backend = BUILD()
    backend.identity = dataclasses.replace(backend.identity, device="cuda", collectives="nccl")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    results = list(check_collectives(backend, BUILD))
    assert {result.verdict for result in results} == {"declined"}
    assert all(re.search("this machine has one cuda", result.reason) for result in results)


def broken():
    raise ValueError("no driver")


@pytest.mark.slow(reason="starts two processes that import torch")
def test_what_a_backend_raises_in_a_process_is_told():
    found = run_processes(broken, 2, NAMES, 0)
    assert found == dict.fromkeys(NAMES, "rank 0 raises ValueError: no driver")
