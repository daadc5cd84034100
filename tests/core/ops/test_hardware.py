import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.configs import AutoHardwareConfig, TorchCpuConfig
from arcforge_core.contracts.batch import cumulative
from arcforge_core.contracts.device import Capabilities, Identity
from arcforge_core.contracts.hardware import OpCall, Probe
from arcforge_core.errors import ConfigError, UnknownComponentError
from arcforge_core.ops import hardware, reference
from arcforge_core.ops.compat import fast_bf16, why_precision
from arcforge_core.ops.hardware import (
    TorchCpu,
    auto_hardware,
    build_hardware,
    capabilities_of,
    sdpa_attention_varlen,
    select_hardware,
    upgraded,
)
from arcforge_core.plugins.registry import Component, Registry


class Fake:
    """A backend that says what its class says."""

    device_type, usable = "npu", True

    def __init__(self, config):
        self.config, self.name = config, config.name

    def probe(self):
        return Probe(self.usable, "one device" if self.usable else "no driver")


class Absent(Fake):
    usable = False


class FastCpu(Fake):
    device_type = "cpu"


class FakeConfig:
    name = "acme"


class OtherConfig:
    name = "bolt"


class CpuConfig:
    name = "cpu"


@pytest.fixture
def installed(monkeypatch):
    """Returns a function that fills the registry: torch_cpu, auto and the given (name, target, schema)."""

    def install(*backends: tuple[str, str, str]) -> None:
        registry = Registry()
        here, core = __name__, "arcforge_core"
        own = [
            ("auto", f"{core}.ops.hardware:auto_hardware", f"{core}.configs:AutoHardwareConfig"),
            ("torch_cpu", f"{core}.ops.hardware:TorchCpu", f"{core}.configs:TorchCpuConfig"),
        ]
        others = [(name, f"{here}:{target}", f"{here}:{schema}") for name, target, schema in backends]
        for name, target, schema in own + others:
            registry.register(Component("hardware", name, target, schema, "", "test", "test 1.0"))
        monkeypatch.setattr(hardware, "registry", lambda: registry)

    return install


def test_the_cpu_is_taken_where_nothing_else_is(installed):
    installed()
    assert isinstance(select_hardware("auto"), TorchCpu)
    assert isinstance(auto_hardware(AutoHardwareConfig()), TorchCpu)
    assert build_hardware(AutoHardwareConfig()).name == "torch_cpu"


def test_the_accelerator_that_is_there_is_preferred(installed):
    installed(("acme", "Fake", "FakeConfig"), ("bolt", "Absent", "OtherConfig"), ("cpu", "FastCpu", "CpuConfig"))
    assert select_hardware("auto").name == "acme"


def test_cpu_is_preferred_over_torch_cpu(installed):
    installed(("cpu", "FastCpu", "CpuConfig"), ("acme", "Absent", "FakeConfig"))
    assert select_hardware("auto").name == "cpu"


def test_two_accelerators_are_an_error_that_names_both(installed):
    installed(("acme", "Fake", "FakeConfig"), ("bolt", "Fake", "OtherConfig"))
    with pytest.raises(ConfigError, match=r"several accelerators are usable \(acme of acme, bolt of bolt\): name one"):
        select_hardware("auto")
    assert select_hardware("bolt").name == "bolt"


def test_an_explicit_backend_that_is_not_usable_is_refused_with_the_reason(installed):
    installed(("acme", "Absent", "FakeConfig"))
    with pytest.raises(ConfigError, match="hardware='acme': not usable here: no driver"):
        select_hardware("acme")
    with pytest.raises(UnknownComponentError, match=r"'torch_cpi'.*did you mean 'torch_cpu'"):
        select_hardware("torch_cpi")


def test_a_broken_or_doubly_claimed_backend_stops_only_those_who_ask_for_it(installed, caplog):
    claim = ("acme", "Fake", "FakeConfig")
    installed(claim, claim, ("bolt", "NoSuchClass", "OtherConfig"))
    with caplog.at_level(logging.WARNING, logger="arcforge.ops"):
        assert select_hardware("auto").name == "torch_cpu"
    assert [r.args[0] for r in caplog.records] == ["acme", "bolt"] and "claimed by" in caplog.text
    with pytest.raises(Exception, match="NoSuchClass"):
        select_hardware("bolt")


def test_every_probe_is_logged(installed, caplog):
    installed(("acme", "Absent", "FakeConfig"))
    with caplog.at_level(logging.INFO, logger="arcforge.ops"):
        select_hardware("auto")
    assert "hardware acme: not usable (no driver)" in caplog.text and "hardware torch_cpu: usable" in caplog.text


# ---- contract 2 ----------------------------------------------------------------------------------------------------


class Unloadable(Fake):
    """A chip that is there, whose driver cannot be imported."""

    identity, capabilities = Identity("acme", "npu", "PrivateUse1", "accl"), Capabilities(int64=True)

    def confirm(self):
        return Probe(False, "the driver needs torch 2.9")


def test_a_chip_whose_driver_fails_is_passed_over_aloud_and_refused_by_name(installed, caplog):
    installed(("acme", "Unloadable", "FakeConfig"))
    assert select_hardware("auto").name == "torch_cpu"
    assert "hardware acme is there, but is not used: the driver needs torch 2.9" in caplog.text
    with pytest.raises(ConfigError, match="hardware='acme': not usable here: the driver needs torch"):
        select_hardware("acme")


class Foreign(Unloadable):
    """A chip whose extension of torch must not be imported."""

    def confirm(self):
        raise AssertionError("imported")


def test_two_chips_for_torch_s_one_foreign_device_are_an_error_before_either_is_imported(installed):
    installed(("acme", "Foreign", "FakeConfig"), ("bolt", "Foreign", "OtherConfig"))
    with pytest.raises(ConfigError, match=r"are usable \(acme of acme, bolt of acme\): name one"):
        select_hardware("auto")


def test_a_backend_of_contract_1_works_with_a_warning():
    with pytest.warns(
        FutureWarning, match="hardware acme: device_type and distributed_backend are those of contract 1"
    ):
        backend = upgraded(Fake(FakeConfig()))
    assert (backend.identity.vendor, backend.identity.device, backend.identity.collectives) == ("acme", "npu", "gloo")
    assert backend.capabilities.fast_bf16 is True and backend.confirm() == backend.probe()
    assert upgraded(backend) is backend


def test_capabilities_of_a_device_are_its_backend_s(installed):
    installed(("acme", "Unloadable", "FakeConfig"))
    capabilities_of.cache_clear()
    assert capabilities_of("npu") is Unloadable.capabilities
    assert (
        capabilities_of("musa") == Capabilities() and not fast_bf16("musa") and why_precision("musa") == "fp32 on musa"
    )
    assert capabilities_of("cpu").fused_adamw
    capabilities_of.cache_clear()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Capabilities(collectives=frozenset({"all_red"})), r"collectives=\['all_red'\]: must be of all_reduce"),
        (lambda: Identity("acme", "", "PrivateUse1", "accl"), "device='': must be a name"),
    ],
)
def test_impossible_descriptions_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- torch_cpu ------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=4),
    st.integers(1, 3), st.integers(1, 2), st.integers(1, 5), st.integers(1, 5),
)  # fmt: skip
def test_sdpa_attends_as_the_reference(segments, repeat, groups, key, value):
    cu_query, cu_key = cumulative([q for q, _ in segments]), cumulative([q + p for q, p in segments])
    q_THK = torch.randn(int(cu_query[-1]), groups * repeat, key, dtype=torch.float64, requires_grad=True)
    k_SGK = torch.randn(int(cu_key[-1]), groups, key, dtype=torch.float64, requires_grad=True)
    v_SGV = torch.randn(int(cu_key[-1]), groups, value, dtype=torch.float64, requires_grad=True)
    outs = [
        attend(q_THK, k_SGK, v_SGV, cu_query, cu_key, 0.3)
        for attend in (sdpa_attention_varlen, reference.attention_varlen)
    ]
    torch.testing.assert_close(*outs)
    seed = torch.randn_like(outs[0])
    for ours, theirs in zip(*(torch.autograd.grad(o, (q_THK, k_SGK, v_SGV), seed) for o in outs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_torch_cpu_offers_its_kernel_on_the_cpu_only():
    backend = TorchCpu(TorchCpuConfig())
    (kernel,) = backend.kernels()
    assert kernel.supports(OpCall("attention_varlen", "cpu", torch.float32))
    refusal = kernel.supports(OpCall("attention_varlen", "meta", torch.float32))
    assert not refusal and "meta" in refusal.reason
    assert backend.probe().ok and "CPU" in backend.probe().reason
    assert backend.roofline().memory_bytes > 2**27 and backend.adjust_config(None) == []
