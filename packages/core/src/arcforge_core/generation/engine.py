"""The plain engine: static batches in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from arcforge_core.config.schema import AttentionConfig, EngineConfig, ModelConfig
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.generation.generate import check_request, continue_prompts, generate
from arcforge_core.generation.weights import next_version, replace_weights
from arcforge_core.model.adapt.prepared import prepare_weights
from arcforge_core.model.adapt.quantised import check_quantised, quantise_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.plugins.loader import registry


def build_engine(config: EngineConfig, model: CausalLM) -> Engine:
    """Builds the configured engine around a model.

    Raises:
        UnknownComponentError: no installed package provides it.
    """
    engine: Engine = registry().get("engine", config.name).load()(config, model)
    return engine


def check_engine(config: EngineConfig, model: ModelConfig, attention: AttentionConfig) -> None:
    """Checks that an engine can serve a model of these sizes, before a checkpoint is loaded.

    Raises:
        ConfigError: the weights cannot be stored in the format named by ``engine.weights``.
    """
    check_quantised(model, attention, getattr(config, "weights", "none"))


def params_per_prompt(
    config: ModelConfig, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[SamplingParams]:
    """Returns one checked `SamplingParams` per prompt.

    Raises:
        ConfigError: the number of parameters differs from the number of prompts, or see `check_request`.
    """
    per_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    if len(per_prompt) != len(prompts):
        raise ConfigError("params", len(per_prompt), f"one for each of the {len(prompts)} prompts, or one for all")
    for prompt, param in zip(prompts, per_prompt, strict=True):
        check_request(config, prompt, param)
    return per_prompt


def check_no_experts(params: SamplingParams, engine: str) -> None:
    """Refuses a request for the experts of tokens.

    Raises:
        ConfigError: it is one.
    """
    if params.experts_from is not None:
        accepted = f"engine={engine} records no experts: engine=paged with engine.record_experts=true does"
        raise ConfigError("experts_from", params.experts_from, accepted)


class SimpleEngine:
    """Generates for at most `batch_size` prompts at a time; implements `contracts.engine.Engine`."""

    takes_adapters = True
    continue_prompts = staticmethod(continue_prompts)
    """`CausalLM.generate`, which looks it up here under the engine's name."""

    def __init__(self, config: SimpleEngineConfig, model: CausalLM, batch_size: int = 16) -> None:
        quantise_model(model, config.weights)
        prepare_weights(model)
        self.model, self.batch_size, self.weight_version = model, batch_size, 0

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates for each prompt, in order; see the contract."""
        per_prompt = params_per_prompt(self.model.config, prompts, params)
        for each in per_prompt:
            check_no_experts(each, "simple")
        outputs: list[GenerationOutput] = []
        for start in range(0, len(prompts), self.batch_size):
            part = slice(start, start + self.batch_size)
            outputs += generate(self.model, prompts[part], per_prompt[part], self.weight_version)
        return outputs

    def update_weights(
        self,
        state: Mapping[str, Tensor],
        *,
        version: int | None = None,
        checksum: str | None = None,
        reset: bool = False,
    ) -> None:
        """Copies a state dict into the model; see the contract."""
        version = next_version(self.weight_version, version, reset)
        replace_weights(self.model, state, f"weight update {version}", checksum)
        self.weight_version = version
