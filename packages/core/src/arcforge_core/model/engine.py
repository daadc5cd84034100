"""The plain engine: static batches in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from arcforge_core.checkpoint.pretrained import check_state
from arcforge_core.config.schema import EngineConfig
from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.generate import check_request, generate
from arcforge_core.registry import registry


def build_engine(config: EngineConfig, model: CausalLM) -> Engine:
    """Builds the configured engine around a model.

    Raises:
        UnknownComponentError: no installed package brings it.
    """
    engine: Engine = registry().get("engine", config.name).load()(config, model)
    return engine


class SimpleEngine:
    """Generates in batches of at most ``max_batch_size``; implements `contracts.engine.Engine`."""

    def __init__(self, config: SimpleEngineConfig, model: CausalLM) -> None:
        self.config, self.model, self.weight_version = config, model, 0

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates for each prompt, in order; see the contract."""
        per_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(per_prompt) != len(prompts):
            raise ConfigError("params", len(per_prompt), f"one for each of the {len(prompts)} prompts, or one for all")
        for prompt, param in zip(prompts, per_prompt, strict=True):
            check_request(self.model.config, prompt, param)
        outputs: list[GenerationOutput] = []
        for start in range(0, len(prompts), self.config.max_batch_size):
            part = slice(start, start + self.config.max_batch_size)
            outputs += generate(self.model, prompts[part], per_prompt[part], self.weight_version)
        return outputs

    def update_weights(self, state: Mapping[str, Tensor]) -> None:
        """Copies a state dict into the model and counts the weight version up; see the contract."""
        check_state(self.model, state, f"weight update {self.weight_version + 1}")
        self.model.load_state_dict(state, strict=False)  # check_state was stricter; a tied head is absent
        self.weight_version += 1
