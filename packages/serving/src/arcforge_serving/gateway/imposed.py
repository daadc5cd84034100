"""Options that a trainer imposes on the turns of a session, whatever the client asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from arcforge_core.chat.openai import options_from_openai
from arcforge_core.contracts.chat import ChatOptions
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.data.split import key_hash
from arcforge_core.errors import ConfigError


@dataclass(frozen=True)
class Imposed:
    """Tokens are trained as samples of one distribution, so a client may not choose another.

    Attributes:
        temperature: of all turns; top-p, penalties and biases of the client are off. None leaves them to the client.
        sampled_logprobs: see `SamplingParams`.
        max_new_tokens: of a turn at most.
        seed: turn k is sampled with ``key_hash(f"{seed}/{k}") >> 1``.
        chat_template_kwargs: switches of the chat template in place of all of the client's; None leaves them to it.

    Raises:
        ConfigError: log-probs of a distribution without a temperature.
    """

    temperature: float | None = None
    sampled_logprobs: bool = False
    max_new_tokens: int | None = None
    seed: str | None = None
    chat_template_kwargs: Mapping[str, bool] | None = None

    def __post_init__(self) -> None:
        if self.sampled_logprobs and not self.temperature:
            raise ConfigError("sampled_logprobs", True, "needs a temperature above 0")

    def options(self, options: ChatOptions) -> ChatOptions:
        """Returns the options to render with."""
        given = self.chat_template_kwargs
        return options if given is None else options_from_openai({"chat_template_kwargs": given})

    def params(self, params: SamplingParams, turn: int) -> SamplingParams:
        """Returns the sampling options of turn number `turn`, from 0."""
        if self.temperature is not None:
            params = replace(
                params, temperature=self.temperature, sampled_logprobs=self.sampled_logprobs, top_p=1.0, top_k=0,
                min_p=0.0, min_new_tokens=0, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0,
                logit_bias={}, top_logprobs=0 if self.sampled_logprobs else params.top_logprobs,
            )  # fmt: skip
        if self.max_new_tokens is not None:
            params = replace(params, max_new_tokens=min(params.max_new_tokens, self.max_new_tokens))
        return params if self.seed is None else replace(params, seed=key_hash(f"{self.seed}/{turn}") >> 1)


def imposed_of(given: Mapping[str, Any]) -> Imposed:
    """Returns the fields of `Imposed` among others; null counts as not given."""
    return Imposed(**{name: given[name] for name in NAMES if given.get(name) is not None})


NAMES = tuple(Imposed.__dataclass_fields__)
