"""Settings of every run: threads and hardware, then the compute dtype and the trained parameters of its model."""

from __future__ import annotations

import os
import re
from typing import Any

import torch
from rich.console import Console

from arcforge_core.config.schema import RunConfig
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.compat import fast_bf16, measured, why_precision
from arcforge_core.ops.hardware import build_hardware
from arcforge_core.ops.processor import usable_threads

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def use_threads(threads: int | None) -> None:
    """Sets torch's CPU threads; None divides the usable ones among the processes of this machine."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    torch.set_num_threads(threads or max(1, usable_threads() // local))


def prepare_hardware(config: RunConfig, console: Console) -> Hardware:
    """Builds the hardware, prints the decision, and applies and prints the changes that it requests."""
    hardware = build_hardware(config.hardware)
    console.print(f"hardware {hardware.name}: {hardware.probe().reason}")
    for change in hardware.adjust_config(config):
        *parents, name = change.field.split(".")
        section: Any = config
        for parent in parents:
            section = getattr(section, parent)
        console.print(f"{change.field}: {getattr(section, name)} -> {change.value} ({change.reason})")
        setattr(section, name, change.value)
    if config.trainer.precision == "auto":
        why = why_precision(hardware.identity.device, config.trainer.deterministic)
        console.print(f"trainer.precision=auto is {why}")
    return hardware


def compute_dtype(config: RunConfig, hardware: Hardware) -> torch.dtype:
    """Returns the dtype of the activations."""
    if config.trainer.precision == "auto":
        device = hardware.identity.device
        fixed = config.trainer.deterministic and measured(device)
        return DTYPES["bf16" if not fixed and fast_bf16(device) else "fp32"]
    return DTYPES[config.trainer.precision]


def freeze(model: CausalLM, trainable: list[str]) -> None:
    """Freezes every parameter whose name matches none of the expressions; an empty list freezes nothing.

    Raises:
        ConfigError: an expression matches no parameter.
    """
    if not trainable:
        return
    names = [name for name, _ in model.named_parameters()]
    for index, pattern in enumerate(trainable):
        if not any(re.search(pattern, name) for name in names):
            accepted = f"matches no parameter; an example is {names[-1]}"
            raise ConfigError(f"trainer.trainable[{index}]", pattern, accepted)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(re.search(pattern, name) for pattern in trainable))
