"""An engine for programs: a checkpoint or a model behind the engine contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained, open_checkpoint
from arcforge_core.config.schema import EngineConfig, HardwareConfig
from arcforge_core.configs import AutoHardwareConfig
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.engine import build_engine, check_engine
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import build_hardware
from arcforge_serving.configs import PagedEngineConfig
from arcforge_serving.paged import PagedEngine


class Engine:
    """Generates; implements `arcforge_core.contracts.engine.Engine`.

    Args:
        model: a model, which `engine` may quantise in place, or the folder of a checkpoint or run.
        engine: the engine behind it; `paged` when None.
        hardware: where a checkpoint is loaded to, ``auto`` when None; a model stays where it is.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigError: its sizes do not fit the engine's number format of weights.
    """

    def __init__(
        self, model: str | Path | CausalLM, engine: EngineConfig | None = None, hardware: HardwareConfig | None = None
    ) -> None:
        if not isinstance(model, CausalLM):
            backend, folder = build_hardware(hardware or AutoHardwareConfig()), find_checkpoint(model)
            check_engine(engine or PagedEngineConfig(), open_checkpoint(folder))
            model = load_pretrained(folder, ops=Ops(backend)).to(backend.device_type)
        self.model = model
        self._engine = build_engine(engine or PagedEngineConfig(), model)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates for each prompt, in order; see the contract."""
        return self._engine.generate(prompts, params)

    def update_weights(
        self, state: Mapping[str, Tensor], *, version: int | None = None, checksum: str | None = None
    ) -> None:
        """Replaces the weights; see the contract."""
        self._engine.update_weights(state, version=version, checksum=checksum)

    @property
    def weight_version(self) -> int:
        """Version of the weights: the number of updates, where they named none."""
        return self._engine.weight_version

    @property
    def paged(self) -> PagedEngine:
        """What ``engine=paged`` does besides: streams, pauses, flushing, statistics, its trace.

        Raises:
            ConfigError: another engine is behind this one.
        """
        if not isinstance(self._engine, PagedEngine):
            raise ConfigError("engine", type(self._engine).__name__, "only engine=paged has streams and pauses")
        return self._engine
