"""The plain engine: static batches in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.generate import generate


class SimpleEngine:
    """Generates in batches of at most ``max_batch_size``; implements `contracts.engine.Engine`."""

    def __init__(self, config: SimpleEngineConfig, model: CausalLM) -> None:
        self.config, self.model, self.weight_version = config, model, 0

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates for each prompt, in order."""
        per_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        outputs: list[GenerationOutput] = []
        for start in range(0, len(prompts), self.config.max_batch_size):
            part = slice(start, start + self.config.max_batch_size)
            outputs += generate(self.model, prompts[part], per_prompt[part], self.weight_version)
        return outputs

    def update_weights(self, state: Mapping[str, Tensor]) -> None:
        """Loads a state dict and counts the weight version up."""
        self.model.load_state_dict(state)
        self.weight_version += 1
