"""The engine contract: token ids in; token ids, log-probs and weight versions out. Shape: V vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from arcforge_core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class Matcher(Protocol):
    """Follows one sequence through a grammar. One thread at a time; an engine fails the sequence when it raises."""

    def allowed(self) -> Tensor:
        """Returns bool [V] on the host: the tokens that may come next, at least one."""

    def accept(self, token: int) -> None:
        """Goes on by a token that was allowed."""

    @property
    def finished(self) -> bool:
        """Whether the sequence ends here: no further token is possible."""


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. Penalties, biases and the matcher change what is drawn, never the log-probs that are reported.

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
        presence_penalty: subtracted from the logit of each token that was generated already, finite.
        frequency_penalty: subtracted from a token's logit as often as it was generated, finite.
        repetition_penalty: divides positive logits of tokens in the prompt or generated, multiplies negative ones; > 0.
        logit_bias: token id -> finite number that is added to its logit.
        n: sequences to generate; sequence i draws from ``seed + i``.
        top_logprobs: how many of the likeliest tokens to report with each generated token.
        prompt_logprobs: report the log-probs of the prompt's tokens, too.
        matcher: called once for each sequence; what it returns says which tokens may come next.
    """

    max_new_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0
    should_stop: Callable[[Sequence[int]], bool] | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    n: int = 1
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    matcher: Callable[[], Matcher] | None = None

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
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise ConfigError(name, getattr(self, name), "must be finite")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise ConfigError("repetition_penalty", self.repetition_penalty, "must be finite and above 0")
        for token, bias in self.logit_bias.items():
            if not math.isfinite(bias):
                raise ConfigError(f"logit_bias[{token}]", bias, "must be finite")
        if not 1 <= self.n <= 2**63 - self.seed:
            raise ConfigError("n", self.n, "must be at least 1, and seed + n at most 2**63")
        if self.top_logprobs < 0:
            raise ConfigError("top_logprobs", self.top_logprobs, "must be at least 0")

    @property
    def penalises(self) -> bool:
        """Whether what was generated before changes the logits."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


TopLogprobs = list[tuple[int, float]]
"""Ids and log-probs of one position's likeliest tokens, likeliest first."""


@dataclass(frozen=True)
class GenerationOutput:
    """One finished sequence.

    Attributes:
        token_ids: generated ids, without the prompt.
        logprobs: natural-log probability of each id under the model itself: at temperature 1, without truncation.
        finish_reason: ``stop``, ``length`` or ``abort``.
        weight_version: of the weights that the last token came from; of an update without a version, their number.
        weight_versions: (version, tokens) spans of the generated tokens, in order: more than one when weights were
            updated on the way.
        top_logprobs: of each generated position, with ``params.top_logprobs``.
        prompt_logprobs: of the prompt's tokens from the second on, with ``params.prompt_logprobs``.
        prompt_top_logprobs: of those positions, with both.
        cached_tokens: prompt tokens that were not computed again, because an earlier request had left them.
        queue_seconds: what it waited for its first step.
        drafted_tokens, accepted_tokens: drafts that were checked, and those of them that were right.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    weight_version: int
    weight_versions: list[tuple[int, int]] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_top_logprobs: list[TopLogprobs] = field(default_factory=list)
    cached_tokens: int = field(default=0, compare=False)
    queue_seconds: float = field(default=0.0, compare=False)
    drafted_tokens: int = field(default=0, compare=False)
    accepted_tokens: int = field(default=0, compare=False)

    @property
    def oldest_version(self) -> int:
        """The oldest weights that a token came from: what decides whether a trajectory is too stale to learn from."""
        return min((version for version, _ in self.weight_versions), default=self.weight_version)


class Engine(Protocol):
    """Generates. Its target is called as ``target(config, model)`` with a `CausalLM`."""

    weight_version: int

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates ``n`` sequences for each prompt (at least one token each), in order. One thread at a time.

        Raises:
            ConfigError: a request that cannot be served; nothing has been generated for any.
            CheckpointError: the logits are not finite.
        """

    def update_weights(self, state: Any, *, version: int | None = None, checksum: str | None = None) -> None:
        """Loads a state dict.

        Args:
            state: names and tensors.
            version: of these weights, above the present one; the present one plus 1 when None.
            checksum: `arcforge_core.model.weights.checksum` of the state, compared before anything is changed.

        Raises:
            CheckpointError: it does not fit, is not finite or has another checksum; weights and version are as before.
            ConfigError: the version is not above the present one.
        """
