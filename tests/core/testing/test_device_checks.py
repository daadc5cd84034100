"""A backend that claims too much or too little about its device."""

import dataclasses

import pytest
import torch

from arcforge_core.configs import TorchCpuConfig
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.testing import device_checks
from arcforge_core.testing.device_checks import check_device


def failures(**claims):
    backend = TorchCpu(TorchCpuConfig())
    backend.capabilities = dataclasses.replace(backend.capabilities, **claims)
    return {result.op: result.reason for result in check_device(backend) if result.verdict == "fail"}


def test_a_cpu_says_what_it_is():
    assert failures() == {}


@pytest.mark.parametrize("name", ["float64", "int64", "bf16", "fused_adamw"])
def test_a_false_no_is_found(name):
    assert failures(**{name: False}) == {f"device {name}": f"capabilities say no {name}, but the device has it"}


def test_a_false_yes_and_what_else_is_broken_are_found(monkeypatch):
    plain, draw = torch.Tensor.to, torch.rand

    def cut(self, *args, **kwargs):
        return (
            plain(plain(self, torch.int32), torch.int64) if self.dtype == torch.int64 else plain(self, *args, **kwargs)
        )

    monkeypatch.setattr(torch.Tensor, "to", cut)
    monkeypatch.setattr(torch, "rand", lambda *size, **options: draw(*size, generator=torch.Generator().manual_seed(0)))
    found = failures()
    assert set(found) == {"device int64", "device rng"}
    assert (
        "int64 values are cut by a copy" in found["device int64"]
        and found["device rng"] == "two draws of uniform values are equal"
    )


@pytest.mark.parametrize(
    ("restore", "reason"),
    [
        (lambda state: None, "normal values drawn after the state was restored are others"),
        (lambda state: torch.manual_seed(torch.initial_seed()), "normal values drawn after the state was restored"),
        (lambda state: 1 / 0, "it raises ZeroDivisionError"),
    ],
)
def test_a_generator_that_is_restored_wrongly_is_found(monkeypatch, restore, reason):
    monkeypatch.setattr(torch, "set_rng_state", restore)
    found = failures()
    assert set(found) == {"device rng"} and found["device rng"].startswith(reason)


def test_memory_that_no_chip_pins_is_found(monkeypatch):
    assert failures(pinned_memory=True) == {
        "device pinned_memory": "capabilities say pinned_memory, but a host is no chip"
    }
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory: empty(*size))
    assert device_checks._pinned_memory("meta") == "memory that was asked for as pinned is not"
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda x: True)
    monkeypatch.setattr(torch.Tensor, "to", lambda x, device: x + 1)
    assert device_checks._pinned_memory("acme") == "values in pinned memory came back as others"


def test_what_a_runtime_raises_is_a_fault():
    def broken(device):
        raise RuntimeError("no such stream\nstack")

    assert device_checks.fault_in(broken, "cpu") == "it raises RuntimeError: no such stream"
