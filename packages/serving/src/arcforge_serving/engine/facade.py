"""The engine for programs: `PagedEngine` on a checkpoint or a model."""

from __future__ import annotations

import warnings
from pathlib import Path

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained, open_checkpoint
from arcforge_core.config.schema import EngineConfig, HardwareConfig
from arcforge_core.configs import AutoHardwareConfig
from arcforge_core.errors import ConfigError
from arcforge_core.generation.engine import check_engine
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.engine.paged import PagedEngine


class Engine(PagedEngine):
    """`PagedEngine` that loads its model; `arcforge_core.generation.engine.build_engine` builds other engines.

    Args:
        model: a model, which ``engine.weights`` may quantise in place, or the folder of a checkpoint or run.
        engine: options; the defaults when None.
        hardware: where a checkpoint is loaded to, ``auto`` when None; a model stays where it is.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigError: another engine, or sizes that do not fit the number format of the weights.
    """

    def __init__(
        self, model: str | Path | CausalLM, engine: EngineConfig | None = None, hardware: HardwareConfig | None = None
    ) -> None:
        config = PagedEngineConfig() if engine is None else engine
        if not isinstance(config, PagedEngineConfig):
            raise ConfigError("engine", config.name, "must be paged; core's build_engine(config, model) builds others")
        if not isinstance(model, CausalLM):
            backend, folder = build_hardware(hardware or AutoHardwareConfig()), find_checkpoint(model)
            checkpoint = open_checkpoint(folder)
            check_engine(config, checkpoint.config, checkpoint.attention)
            model = load_pretrained(folder, ops=Ops(backend)).to(backend.identity.device)
        super().__init__(config, model)

    @property
    def paged(self) -> PagedEngine:
        """The engine itself: since it is a `PagedEngine`, nothing has to be unwrapped."""
        message = "Engine.paged is the Engine itself now; it will be removed in the next version"
        warnings.warn(message, FutureWarning, stacklevel=2)
        return self
