"""The plain engine: static batches in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from arcforge_core.checkpoint.pretrained import Checkpoint
from arcforge_core.config.schema import EngineConfig, ModelConfig
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.generate import check_request, generate
from arcforge_core.model.quantised import check_quantised, quantise_model
from arcforge_core.model.weights import next_version, replace_weights
from arcforge_core.registry import registry


def build_engine(config: EngineConfig, model: CausalLM) -> Engine:
    """Builds the configured engine around a model.

    Raises:
        UnknownComponentError: no installed package brings it.
    """
    engine: Engine = registry().get("engine", config.name).load()(config, model)
    return engine


def check_engine(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Refuses what an engine could not do with a checkpoint, before the checkpoint is loaded.

    Raises:
        ConfigError: the weights do not fit the format that ``engine.weights`` names.
    """
    check_quantised(checkpoint.config, checkpoint.attention, getattr(config, "weights", "none"))


def params_per_prompt(
    config: ModelConfig, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[SamplingParams]:
    """Returns the parameters of each prompt, all of them checked.

    Raises:
        ConfigError: their number is not that of the prompts, or see `check_request`.
    """
    per_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    if len(per_prompt) != len(prompts):
        raise ConfigError("params", len(per_prompt), f"one for each of the {len(prompts)} prompts, or one for all")
    for prompt, param in zip(prompts, per_prompt, strict=True):
        check_request(config, prompt, param)
    return per_prompt


class SimpleEngine:
    """Generates for at most ``max_batch_size`` prompts at a time; implements `contracts.engine.Engine`."""

    def __init__(self, config: SimpleEngineConfig, model: CausalLM) -> None:
        quantise_model(model, config.weights)
        self.config, self.model, self.weight_version = config, model, 0

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates for each prompt, in order; see the contract."""
        per_prompt = params_per_prompt(self.model.config, prompts, params)
        outputs: list[GenerationOutput] = []
        for start in range(0, len(prompts), self.config.max_batch_size):
            part = slice(start, start + self.config.max_batch_size)
            outputs += generate(self.model, prompts[part], per_prompt[part], self.weight_version)
        return outputs

    def update_weights(
        self, state: Mapping[str, Tensor], *, version: int | None = None, checksum: str | None = None
    ) -> None:
        """Copies a state dict into the model; see the contract."""
        version = next_version(self.weight_version, version)
        replace_weights(self.model, state, f"weight update {version}", checksum)
        self.weight_version = version
