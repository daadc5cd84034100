"""A device that Lightning does not know: its accelerator and strategy, and a run on the wrong device."""

import dataclasses
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from arcforge_core.contracts.device import GENERAL, Capabilities, Identity
from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_core.train.accelerator import AfterBackward, OnDevice, devices_of


def chip(capabilities=GENERAL, device="npu"):
    return SimpleNamespace(
        name="acme", identity=Identity("acme", device, "PrivateUse1", "accl"), capabilities=capabilities
    )


@pytest.fixture
def processes(monkeypatch):
    def run(world):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world))

    run(1)
    return run


def test_devices_of_lightning_s_own_are_left_to_it(processes):
    assert devices_of(chip(device="cpu")) == {"accelerator": "cpu", "strategy": "auto", "devices": 1, "num_nodes": 1}
    processes(2)
    assert devices_of(chip(device="cpu"))["strategy"] == "ddp_find_unused_parameters_true"


def test_another_chip_gets_accelerator_and_strategy_together(processes):
    xpu = chip(device="xpu")  # torch knows the name everywhere, and Lightning nowhere
    settings = devices_of(xpu)
    assert isinstance(settings["strategy"], SingleDeviceStrategy)
    assert settings["strategy"].root_device == torch.device("xpu", 0)
    assert settings["strategy"].accelerator.name() == "xpu" and "accelerator" not in settings
    processes(2)
    strategy = devices_of(xpu)["strategy"]
    assert isinstance(strategy, AfterBackward)
    pins = chip(dataclasses.replace(GENERAL, pinned_memory=True), "xpu")
    for parallel in (strategy, devices_of(pins)["strategy"]):
        assert isinstance(parallel, DDPStrategy) and parallel.determine_ddp_device_ids() is None
        assert parallel.parallel_devices == [torch.device("xpu", 0), torch.device("xpu", 1)]
        assert parallel.process_group_backend == "cpu:gloo,xpu:accl" and parallel.accelerator.parse_devices(2) == [0, 1]
    assert not isinstance(parallel, AfterBackward)


def test_without_torch_s_wrapper_all_processes_begin_with_the_weights_of_the_first(monkeypatch):
    sent = []
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, source: sent.append((tensor, source)))
    strategy = AfterBackward()
    strategy.model = torch.nn.BatchNorm1d(2)
    strategy.configure_ddp()
    assert type(strategy.model) is torch.nn.BatchNorm1d and len(sent) == 5
    assert all(source == 0 and not tensor.requires_grad for tensor, source in sent)
    assert sent[0][0].data_ptr() == strategy.model.weight.data_ptr()


def test_several_processes_need_collectives(processes):
    processes(2)
    with pytest.raises(ConfigError, match="WORLD_SIZE=2: must be 1 on acme: its accl lacks all_gather, all_reduce"):
        devices_of(chip(Capabilities(collectives=frozenset({"broadcast"}))))


def test_a_run_whose_parameters_are_elsewhere_stops():
    module = L.LightningModule()
    module.layer = torch.nn.Linear(1, 1)
    OnDevice("cpu").on_train_start(None, module)
    with pytest.raises(ArcforgeError, match=r"layer.weight is on cpu, and the run is for npu"):
        OnDevice("npu").on_train_start(None, module)
