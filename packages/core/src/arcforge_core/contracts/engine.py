"""The engine contract: token ids in; token ids, log-probs and the weight version out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arcforge_core.errors import ConfigError


@dataclass(frozen=True)
class SamplingParams:
    """How to sample.

    Attributes:
        max_new_tokens: tokens to generate at most, >= 1.
        temperature: 0 is greedy.
        top_p: nucleus mass in (0, 1]: keep the fewest likeliest tokens that reach it, after top_k.
        top_k: keep the k likeliest; 0 keeps all.
        min_p: drop tokens below min_p times the likeliest one's probability, in [0, 1].
        stop_token_ids: a token of these ends the sequence; it is part of the output.
        should_stop: called with the ids generated so far after each of them; True ends the sequence, as for a stop
            string.
        seed: same seed, same output, whatever else is in the batch; in [0, 2**63).
    """

    max_new_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0
    should_stop: Callable[[Sequence[int]], bool] | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError("max_new_tokens", self.max_new_tokens, "must be at least 1")
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigError("temperature", self.temperature, "must be finite and at least 0")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError("top_p", self.top_p, "must be in (0, 1]")
        if self.top_k < 0:
            raise ConfigError("top_k", self.top_k, "must be at least 0 (0 keeps all)")
        if not 0.0 <= self.min_p <= 1.0:
            raise ConfigError("min_p", self.min_p, "must be in [0, 1]")
        if not 0 <= self.seed < 2**63:
            raise ConfigError("seed", self.seed, "must be in [0, 2**63)")


@dataclass(frozen=True)
class GenerationOutput:
    """One finished sequence.

    Attributes:
        token_ids: generated ids, without the prompt.
        logprobs: natural-log probability of each id under the model itself: at temperature 1, without truncation.
        finish_reason: ``stop`` or ``length``.
        weight_version: number of weight updates the engine had received.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    weight_version: int


class Engine(Protocol):
    """Generates. Its target is called as ``target(config, model)`` with a `CausalLM`."""

    weight_version: int

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates for each prompt (at least one token each), in order. One thread at a time.

        Raises:
            ConfigError: a request that cannot be served; nothing has been generated for any.
        """

    def update_weights(self, state: Any) -> None:
        """Loads a state dict and counts the weight version up.

        Raises:
            CheckpointError: it does not fit; weights and version are as before.
        """
