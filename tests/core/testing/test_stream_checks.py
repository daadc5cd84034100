"""A CPU has no streams, whatever names its module has."""

import dataclasses

from arcforge_core.configs import TorchCpuConfig
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.testing.stream_checks import check_streams


def test_a_cpu_without_streams_passes_and_one_that_claims_them_fails():
    backend = TorchCpu(TorchCpuConfig())
    assert [result.verdict for result in check_streams(backend)] == ["pass"]
    backend.capabilities = dataclasses.replace(backend.capabilities, streams=True)
    assert any(result.verdict == "fail" and result.reason for result in check_streams(backend))
