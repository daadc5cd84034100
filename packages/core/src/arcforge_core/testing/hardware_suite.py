"""The conformance suite of hardware backends: subclass it and provide the fixture `hardware`.

class TestAcme(HardwareBackendSuite):
    @pytest.fixture
    def hardware(self):
        return AcmeNpu(AcmeNpuConfig(simulate=True))
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch

from arcforge_core.config.compose import compose
from arcforge_core.contracts.device import Capabilities, Identity
from arcforge_core.contracts.hardware import Change, Hardware, OpCall, Probe, Roofline
from arcforge_core.ops.dispatch import fault_of, ties
from arcforge_core.ops.specs import SPECS
from arcforge_core.testing.hardware_checks import DTYPES, FAIL, PASS, check_hardware, supports
from arcforge_core.testing.op_inputs import op_cases


class HardwareBackendSuite:
    """Checks of every backend: it gives reasons, implements only known ops, and matches the reference."""

    ops: ClassVar[Sequence[str]] = tuple(sorted(SPECS))
    """Ops of `test_kernels_equal_the_reference`, one test each; those without a kernel skip. A subclass that lists the
    ops of its kernels has none of these."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Makes a test for each op."""
        if "op" in metafunc.fixturenames:
            metafunc.parametrize("op", self.ops)

    @pytest.fixture
    def hardware(self) -> Hardware:
        """The backend to test; a subclass returns it."""
        raise NotImplementedError("provide the fixture `hardware` in your subclass")

    def test_attributes(self, hardware: Hardware) -> None:
        """The name and what the chip is and can do are set, and torch knows the device type of a usable chip."""
        assert hardware.name.isidentifier()
        assert isinstance(hardware.identity, Identity) and isinstance(hardware.capabilities, Capabilities)
        if hardware.confirm().ok:
            assert torch.device(hardware.identity.device).type == hardware.identity.device

    def test_probe_gives_a_reason(self, hardware: Hardware) -> None:
        """`probe` and `confirm` never raise, and give a reason for both results; `confirm` presumes `probe`."""
        probe, confirmed = hardware.probe(), hardware.confirm()
        assert isinstance(probe, Probe) and isinstance(confirmed, Probe)
        assert probe.reason and confirmed.reason
        assert probe.ok or not confirmed.ok

    def test_roofline_is_positive(self, hardware: Hardware) -> None:
        """Peak rates are positive if they are given."""
        roofline = hardware.roofline()
        assert isinstance(roofline, Roofline)
        rates = [roofline.memory_bytes, roofline.memory_bytes_per_s, *(roofline.matmul_flops or {}).values()]
        assert all(rate is None or rate > 0 for rate in rates)

    def test_changes_of_the_config_are_returned(self, hardware: Hardware) -> None:
        """`adjust_config` returns changes of existing fields, each with a reason, and modifies nothing."""
        config = compose([])
        before = repr(config)
        for change in hardware.adjust_config(config):
            assert isinstance(change, Change)
            assert change.reason
            operator.attrgetter(change.field)(config)  # raises when there is no such field
        assert repr(config) == before, "adjust_config changed the config in place"

    def test_kernels_have_the_signatures_of_known_ops(self, hardware: Hardware) -> None:
        """Each kernel implements a known op, takes its arguments, and has a name and a priority of its own."""
        kernels = hardware.kernels()
        assert {k.name: fault_of(k) for k in kernels if fault_of(k)} == {}
        assert len({(k.op, k.name) for k in kernels}) == len(kernels)
        assert ties(kernels) == []

    def test_kernels_give_reasons_for_refusals(self, hardware: Hardware) -> None:
        """`supports` answers every call, for other devices too, with a reason if it is negative."""
        for kernel in hardware.kernels():
            case = op_cases(kernel.op)[0]
            for device in (hardware.identity.device, "meta"):
                for dtype in DTYPES:
                    for needs_grad in (False, True):
                        call = OpCall(kernel.op, device, dtype, needs_grad, case.sizes)
                        verdict = supports(kernel, call)
                        assert device != "meta" or not verdict.ok, f"{kernel.name} accepts the device meta"

    def test_kernels_equal_the_reference(self, hardware: Hardware, op: str) -> None:
        """Outputs and gradients match float64's within the op's tolerance, with the same bits in two runs."""
        probe = hardware.confirm()
        if not probe.ok:
            pytest.skip(f"{hardware.name}: {probe.reason}")
        results = list(check_hardware(hardware, [op]))
        if not results:
            pytest.skip(f"{hardware.name} has no kernel for {op}; the reference runs")
        failed = [f"{r.op}: {r.kernel} [{r.dtype}]: {r.reason}" for r in results if r.verdict == FAIL]
        assert not failed, "\n".join(failed)
        assert any(r.verdict == PASS for r in results), f"{op}: every kernel declines every dtype"
