"""The engine contract: token ids in; token ids, log-probs and weight versions out. Shape: V vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from arcforge_core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from arcforge_core.contracts.experts import Experts


class Matcher(Protocol):
    """Follows one sequence through a grammar. Not thread-safe; an engine fails the sequence when it raises."""

    def allowed(self) -> Tensor:
        """Returns bool [V] on the host: the tokens that may come next, at least one."""

    def accept(self, token: int) -> None:
        """Accepts an allowed token."""

    @property
    def finished(self) -> bool:
        """Whether the sequence is complete: no further token is possible."""


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. Penalties, biases and the matcher change the sampled tokens, never the reported log-probs.

    Log-probs are the model's own, at temperature 1, unless `sampled_logprobs` is set.

    Attributes:
        max_new_tokens: maximum number of generated tokens, >= 1.
        temperature: 0 is greedy.
        top_p: nucleus mass in (0, 1]: after top_k, keep the smallest set of likeliest tokens that reaches it.
        top_k: keep the k likeliest; 0 keeps all.
        min_p: drop tokens below min_p times the likeliest one's probability, in [0, 1].
        min_new_tokens: number of tokens generated first: stop tokens are not sampled among them, unless a grammar
            leaves no other, and `should_stop` has no effect; at most max_new_tokens.
        stop_token_ids: each of these tokens ends the sequence; it is part of the output.
        should_stop: called after each token with the ids generated so far; True ends the sequence, e.g. for a stop
            string.
        seed: same seed, same output, independent of the rest of the batch; in [0, 2**63).
        presence_penalty: subtracted from the logit of each token that was already generated, finite.
        frequency_penalty: subtracted from a token's logit once for each time it was generated, finite.
        repetition_penalty: divides positive logits of tokens in the prompt or output, multiplies negative ones; > 0.
        logit_bias: token id -> finite number added to its logit.
        n: sequences to generate; sequence i draws from ``seed + i``.
        top_logprobs: number of likeliest tokens to report at each generated position.
        prompt_logprobs: also report the log-probs of the prompt's tokens.
        matcher: called once per sequence; returns the `Matcher` that restricts its tokens.
        experts_from: also report the experts chosen at each position from this one on; None reports none. Needs an
            engine that records them.
        sampled_logprobs: report generated tokens' log-probs (and ``top_logprobs``) under the distribution that they are
            sampled from, softmax of logits / temperature. Needs a temperature above 0, and none of the other fields
            that change the distribution.
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
    sampled_logprobs: bool = False
    min_new_tokens: int = 0
    experts_from: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError("max_new_tokens", self.max_new_tokens, "must be at least 1")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            accepted = f"must be in [0, {self.max_new_tokens}], the most tokens"
            raise ConfigError("min_new_tokens", self.min_new_tokens, accepted)
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
        if self.experts_from is not None and self.experts_from < 0:
            raise ConfigError("experts_from", self.experts_from, "must be at least 0")
        if self.sampled_logprobs and (self.temperature == 0.0 or self._reshapes):
            others = "top_p, top_k, min_p, penalty, logit_bias, min_new_tokens or matcher"
            accepted = f"needs temperature > 0 and no {others}"
            raise ConfigError("sampled_logprobs", True, accepted)

    @property
    def _reshapes(self) -> bool:
        """Whether more than the temperature changes the distribution."""
        filters = self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0
        changed = self.penalises or bool(self.logit_bias) or self.min_new_tokens > 0
        return filters or changed or self.matcher is not None

    @property
    def penalises(self) -> bool:
        """Whether previous tokens change the logits."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


TopLogprobs = list[tuple[int, float]]
"""Ids and log-probs of the likeliest tokens at one position, likeliest first."""


@dataclass(frozen=True)
class Token:
    """A sampled or given token, its log-prob, and the likeliest tokens at its position."""

    id: int
    logprob: float
    top: TopLogprobs


@dataclass(frozen=True)
class TokenDelta:
    """Tokens that a sequence gained since the previous delta.

    Attributes:
        tokens: in order.
        finish_reason: None while the sequence may continue.
    """

    tokens: list[Token]
    finish_reason: str | None


@dataclass(frozen=True)
class GenerationOutput:
    """One finished sequence.

    Attributes:
        token_ids: generated ids, without the prompt.
        logprobs: natural-log probability of each id under the model itself, at temperature 1 and without truncation, or
            with ``params.sampled_logprobs`` under the distribution that it was sampled from.
        finish_reason: ``stop``, ``length`` or ``abort``.
        weight_version: of the weights that generated the last token; an update without a version gets the next number.
        weight_versions: (version, tokens) spans of the generated tokens, in order: more than one if weights were
            updated during generation.
        top_logprobs: at each generated position, with ``params.top_logprobs``.
        prompt_logprobs: of the prompt's tokens from the second on, with ``params.prompt_logprobs``.
        prompt_top_logprobs: at those positions, with both.
        cached_tokens: prompt tokens read from the prefix cache.
        queue_seconds: waiting time before the first step.
        drafted_tokens, accepted_tokens: drafts that were verified, and those that were accepted.
        experts: with ``params.experts_from``, the experts of every layer that has some, at the positions from there to
            the last token but one: that one was never read. [P, L, K], see `arcforge_core.contracts.experts`.
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
    experts: Experts | None = field(default=None, compare=False, repr=False)

    @property
    def oldest_version(self) -> int:
        """Oldest version that generated a token; decides whether a trajectory is too stale to train on."""
        return min((version for version, _ in self.weight_versions), default=self.weight_version)


class PartialUpdateError(CheckpointError):
    """Some engines of several refused a weight update, and the others took it.

    Args:
        version: that the engines have which accept requests.
        refused: what each engine said that refused; these accept no request before they have this version.
    """

    def __init__(self, version: int, refused: Mapping[str, str]) -> None:
        said = "; ".join(f"engine {name}: {why}" for name, why in refused.items())
        super().__init__(f"weight update {version} was refused by some engines, which restart with it: {said}")
        self.version, self.refused = version, dict(refused)


class UnfinishedUpdateError(CheckpointError):
    """A weight update that an engine did not confirm: it hangs, has died or hung up. Which weights it has is unknown,
    or those of before; the update may be given again."""


class Engine(Protocol):
    """Generates tokens. Its target is called as ``target(config, model)`` with a `CausalLM`.

    One with ``takes_adapters = True`` takes updates of adapters alone, too (`arcforge_core.model.adapt.low_rank`).
    """

    @property
    def weight_version(self) -> int: ...

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates ``n`` sequences for each prompt (at least one token each), in order. Not thread-safe.

        Raises:
            ConfigError: a request that cannot be served; nothing has been generated for any request.
            CheckpointError: the logits are not finite.
            ArcforgeError: a server failed; the sequences of the others have been generated nevertheless.
        """

    def update_weights(
        self, state: Any, *, version: int | None = None, checksum: str | None = None, reset: bool = False
    ) -> None:
        """Loads a state dict.

        Args:
            state: names and tensors.
            version: of these weights, greater than the current one; None: the current one plus 1.
            reset: the version may be any: those of before are of another run, or of steps that a resumed run repeats.
            checksum: `arcforge_core.generation.weights.checksum` of the state, compared before anything is changed.

        Raises:
            CheckpointError: the state does not fit, is not finite or has another checksum; weights and version are
                unchanged.
            PartialUpdateError: some engines of several have other weights, and accept no requests.
            ConfigError: the version is not greater than the current one.
        """
