"""Lightning's trainer of a run, with its loggers and the callbacks from plugins."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist
from lightning.pytorch.loggers import Logger
from torch._C._distributed_c10d import PrefixStore, TCPStore

from arcforge_core.config.ready import check_packages
from arcforge_core.config.schema import RunConfig
from arcforge_core.contracts.hardware import Hardware
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_core.train.accelerator import OnDevice, devices_of
from arcforge_core.train.resume import restarts


def check_components(config: RunConfig) -> None:
    """Loads the loggers and callbacks before any work starts.

    Raises:
        ConfigError: a logger needs a package that is not installed, or credentials.
        PluginError: a component cannot be imported.
    """
    check_packages(config)
    if not int(os.environ.get("RANK", 0)):
        for logger in config.logger.values():
            logger.check_ready()
    for kind, chosen in (("logger", config.logger), ("callback", config.callback)):
        for name in chosen:
            registry().get(kind, name).load()


def build_loggers(config: RunConfig, run_dir: Path) -> list[Logger]:
    """Builds the loggers in the first process; the others log nothing."""
    if int(os.environ.get("RANK", 0)):
        return []
    return [registry().get("logger", one.name).load()(one, run_dir) for one in config.logger.values()]


def build_callbacks(config: RunConfig, run_dir: Path) -> list[L.Callback]:
    """Builds the callbacks from plugins, in every process."""
    return [registry().get("callback", one.name).load()(one, run_dir) for one in config.callback.values()]


def connect_restarted(backend: str) -> None:
    """Connects processes that torchrun has restarted; Lightning connects all others.

    Torchrun may keep one store for all attempts (torch 2.13 with ``--standalone`` or ``--rdzv-backend=c10d``). Under
    the keys of the group that Lightning makes, a process can find the address of a dead one. Here each attempt has
    keys of its own.

    Args:
        backend: name for `torch.distributed`.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    if (
        world == 1
        or not restarts()
        or dist.is_initialized()
        or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    ):
        return
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    own = PrefixStore(f"restart {restarts()}", store)
    dist.init_process_group(backend, store=own, rank=int(os.environ["RANK"]), world_size=world)


def build_trainer(
    config: RunConfig, hardware: Hardware, run_dir: Path, callbacks: Sequence[L.Callback] = ()
) -> L.Trainer:
    """Builds Lightning's trainer; torchrun, not Lightning, starts further processes.

    Args:
        config: the run; its callbacks from plugins follow `callbacks`.
        hardware: the hardware of the run.
        run_dir: output folder of the loggers.
        callbacks: callbacks of the run, in calling order.

    Raises:
        ConfigError: ``trainer.extra`` names an argument that arcforge sets, or one unknown to Lightning.
    """
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)  # prints tips on every fit
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.pytorch\.utilities\._pytree")
    settings: dict[str, Any] = {
        **devices_of(hardware),
        "max_epochs": 1,
        "logger": build_loggers(config, run_dir),
        "callbacks": [OnDevice(hardware.identity.device), *callbacks, *build_callbacks(config, run_dir)],
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    clash = settings.keys() & config.trainer.extra.keys()
    if clash:
        raise ConfigError("trainer.extra", sorted(clash), "these are set by arcforge")
    try:
        return L.Trainer(**settings, **config.trainer.extra)
    except TypeError as error:
        raise ConfigError(
            "trainer.extra", config.trainer.extra, f"not accepted by lightning.Trainer: {error}"
        ) from error
