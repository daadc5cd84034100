"""Autocast of a CPU, and claims about it."""

import dataclasses

from arcforge_core.configs import TorchCpuConfig
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.testing.autocast_checks import PROBES, check_autocast


def test_a_cpu_passes_and_a_false_no_is_found():
    backend = TorchCpu(TorchCpuConfig())
    results = list(check_autocast(backend))
    assert [(r.op, r.verdict) for r in results] == [(f"autocast {name}", "pass") for name in PROBES]
    backend.capabilities = dataclasses.replace(backend.capabilities, autocast=False)
    assert [result.reason for result in check_autocast(backend)] == [
        "capabilities say no autocast, but the device has it"
    ]
