"""The contents of a checkpoint besides the weights: captured from a module between two steps, and restored."""

from __future__ import annotations

import copy
import dataclasses
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from arcforge_core.checkpoint.pretrained import load_weights
from arcforge_core.errors import CheckpointError
from arcforge_core.eval.bits_per_byte import BitsPerByte
from arcforge_core.train.module import TrainingModule

T = TypeVar("T")
Options = list[dict[str, Any]]
"""The parameter groups of an optimizer without their parameters."""


@dataclass(frozen=True)
class TrainingState:
    """The state of a run after a step. The schedule is a function of progress and has no state.

    Attributes:
        path: the checkpoint's folder.
        progress: fields of the module's `Progress`.
        world_size: processes that share the data; the data position counts the batches of one of them.
        heldout: the evaluation after this step, or None.
        optimizer: state dict of the optimizer.
        options: the optimizer's options as configured.
        rng: random states by generator.
        extra: further state of the module.
        page: content of ``page.json``, see `arcforge_core.checkpoint.starters`.
        files: further files of tensors by name.
    """

    path: Path
    progress: dict[str, Any]
    world_size: int
    heldout: BitsPerByte | None
    optimizer: dict[str, Any]
    options: Options
    rng: dict[str, Any]
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    page: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: dict[str, dict[str, Tensor]] = dataclasses.field(default_factory=dict)

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return int(self.progress["step"])

    def restore_model(self, module: TrainingModule) -> None:
        """Loads weights and progress; `restore_training` loads the rest.

        Raises:
            CheckpointError: the weights do not fit the model.
        """
        load_weights(module.model, self.path)
        module.progress = type(module.progress)(**self.progress)

    def restore_training(self, module: TrainingModule) -> None:
        """Loads optimizer and random states after the start of a fit, which builds the one and uses the other.

        Raises:
            CheckpointError: the optimizer's parameter groups differ from the saved ones.
        """
        restore_optimizer(optimizer_of(module), self.optimizer, self.options)
        module.restore_extra(self.extra)
        restore_random_states(self.rng, module.device)


def take_state(module: TrainingModule, run_dir: Path, options: Options, heldout: BitsPerByte | None) -> TrainingState:
    """Returns the state after the latest step; it shares memory with the module."""
    progress = {
        f.name: getattr(module.progress, f.name) for f in dataclasses.fields(module.progress) if f.name[0] != "_"
    }
    return TrainingState(
        run_dir / "checkpoints" / f"step-{module.progress.step:08d}",
        progress,
        int(os.environ.get("WORLD_SIZE", 1)),
        heldout,
        optimizer_of(module).state_dict(),
        options,
        random_states(module.device),
        module.extra_state(),
        module.page,
        module.tensor_files(),
    )


def optimizer_of(module: TrainingModule) -> torch.optim.Optimizer:
    """Returns the optimizer of a fit."""
    optimizer = module.optimizers(use_pl_optimizer=False)
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def optimizer_options(optimizer: torch.optim.Optimizer) -> Options:
    """Returns a copy of the options of every parameter group."""
    return copy.deepcopy([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any], configured: Options) -> None:
    """Loads a state dict into a newly built optimizer.

    Options keep their saved values, except those whose configuration has changed since.

    Args:
        optimizer: receives the state.
        saved: the state dict.
        configured: the saved optimizer's options as configured then.

    Raises:
        CheckpointError: the parameters or their groups differ.
    """
    now = optimizer_options(optimizer)
    if [group["names"] for group in now] != [group["names"] for group in configured]:
        raise CheckpointError("the optimizer's parameter groups are not those of the checkpoint: keep its options")
    optimizer.load_state_dict(saved)
    for group, then, new in zip(optimizer.param_groups, configured, now, strict=True):
        group.update({name: value for name, value in new.items() if name not in then or then[name] != value})


def host_copy(tree: T, tensors: Iterable[Tensor]) -> T:
    """Returns a deep copy of `tree` with `tensors` copied to host memory."""

    def copied(tensor: Tensor) -> Tensor:
        host = tensor.detach().to("cpu", copy=True)
        return nn.Parameter(host, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else host

    return copy.deepcopy(tree, {id(tensor): copied(tensor) for tensor in tensors})


def random_states(device: torch.device) -> dict[str, Any]:
    """Returns the states of the global generators of Python, NumPy, torch and the device."""
    _, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    states = {
        "python": random.getstate(),
        "numpy": (torch.tensor(words), position, has_gauss, gauss),  # a tensor loads without pickle
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def restore_random_states(states: dict[str, Any], device: torch.device) -> None:
    """Restores the result of `random_states`; a device of another type than the saved one keeps its state."""
    random.setstate(states["python"])
    words, *rest = states["numpy"]
    np.random.set_state(("MT19937", words.numpy(), *rest))
    torch.set_rng_state(states["torch"])
    if device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type], device)
