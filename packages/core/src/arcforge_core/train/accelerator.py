"""Lightning on a device that it does not know: accelerator and strategy together, because either alone uses the CPU.

A registered accelerator with the default strategy trains on the CPU without a warning, and a strategy without one does
not set the device (Lightning 2.6).
"""

from __future__ import annotations

import os
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from arcforge_core.contracts.device import TRAINING, Identity
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.errors import ArcforgeError, ConfigError


def devices_of(hardware: Hardware) -> dict[str, Any]:
    """Returns the arguments of `lightning.Trainer` that place a run on the devices of a chip.

    Raises:
        ConfigError: several processes train on a chip that lacks a collective.
    """
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    identity, missing = hardware.identity, sorted(TRAINING - hardware.capabilities.collectives)
    if world > 1 and missing:
        accepted = f"must be 1 on {hardware.name}: its {identity.collectives} lacks {', '.join(missing)}"
        raise ConfigError("WORLD_SIZE", world, accepted)
    settings: dict[str, Any] = {"devices": local, "num_nodes": world // local}
    if identity.device in AcceleratorRegistry.available_accelerators():
        strategy = "ddp_find_unused_parameters_true" if world > 1 else "auto"
        return {"accelerator": identity.device, "strategy": strategy, **settings}
    accelerator = accelerator_of(identity)()
    if world == 1:
        one = torch.device(identity.device, 0)
        return {"strategy": SingleDeviceStrategy(device=one, accelerator=accelerator), **settings}
    parallel = ChipDDP if hardware.capabilities.pinned_memory else AfterBackward
    return {
        "strategy": parallel(
            accelerator=accelerator,
            parallel_devices=[torch.device(identity.device, index) for index in range(local)],
            process_group_backend=f"cpu:gloo,{identity.device}:{identity.collectives}",  # and host tensors
            find_unused_parameters=True,
        ),
        **settings,
    }


class ChipDDP(DDPStrategy):
    """Data-parallel training on a chip; with numbers of devices, Lightning's own would use a stream of CUDA."""

    def determine_ddp_device_ids(self) -> None:
        """Returns none: the model is on its device, and inputs are moved before `forward`."""
        return


class AfterBackward(ChipDDP):
    """Data-parallel training that needs collectives alone: `TrainingModule.share_gradients` exchanges gradients."""

    def configure_ddp(self) -> None:
        """Gives all processes the weights of the first one; the model is not wrapped."""
        assert self.model is not None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            dist.broadcast(tensor.detach(), 0)


def accelerator_of(identity: Identity) -> type[Accelerator]:
    """Returns a Lightning accelerator for a torch device; Lightning asks the class, so each device has its own."""
    device_type = identity.device

    class ChipAccelerator(Accelerator):
        """The chip's devices, by number."""

        def setup_device(self, device: torch.device) -> None:
            """Makes `device` the current one of this process."""
            torch.get_device_module(device_type).set_device(device)

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            """Returns nothing: a chip's figures have no common names."""
            return {}

        def teardown(self) -> None:
            """Leaves the device as it is."""

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            """Returns device numbers of a count or a list."""
            return list(devices) if isinstance(devices, list) else list(range(int(devices)))

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            """Returns the devices of these numbers."""
            return [torch.device(device_type, index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            """Returns the devices of this machine."""
            return int(torch.get_device_module(device_type).device_count())

        @staticmethod
        def is_available() -> bool:
            """Whether the machine has one."""
            return bool(torch.get_device_module(device_type).is_available())

        @staticmethod
        def name() -> str:
            """The torch device type."""
            return device_type

    return ChipAccelerator


class OnDevice(L.Callback):
    """Stops a run whose parameters are not on the chip that it was started for.

    Args:
        device_type: torch device type.
    """

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Looks at every parameter.

        Raises:
            ArcforgeError: one is on another device.
        """
        for name, parameter in module.named_parameters():
            if parameter.device.type != self.device_type:
                raise ArcforgeError(f"{name} is on {parameter.device}, and the run is for {self.device_type}")
