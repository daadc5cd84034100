"""Compiled functions of a CPU."""

import dataclasses

import pytest

from arcforge_core.configs import TorchCpuConfig
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.testing.compile_checks import PROBES, check_compile


def results(**claims):
    backend = TorchCpu(TorchCpuConfig())
    backend.capabilities = dataclasses.replace(backend.capabilities, **claims)
    return list(check_compile(backend))


@pytest.mark.slow(reason="runs torch's compiler")
def test_a_cpu_passes():
    assert [(r.op, r.verdict, r.reason) for r in results()] == [(f"compile {name}", "pass", "") for name in PROBES]


def test_a_backend_that_torch_does_not_know_fails_and_none_declines():
    assert {result.verdict for result in results(compiler="acme")} == {"fail"}
    assert [(r.verdict, r.reason) for r in results(compiler=None)] == [
        ("declined", "capabilities name no backend of torch.compile")
    ]
