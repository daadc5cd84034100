"""Fields of both generating routes: sampling, stop conditions, structured output, and the contents of the reply."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer
from arcforge_serving.server.shared.body import MOST_STOPS, Body, StopString, Text, TokenId
from arcforge_serving.server.shared.detokenize import StopWatch
from arcforge_serving.server.shared.errors import ContextLengthError, UnknownModelError
from arcforge_serving.server.shared.ignored import Refused, ignored
from arcforge_serving.server.shared.jobs import Job
from arcforge_serving.server.shared.state import ServerState
from arcforge_serving.server.shared.structured import MatcherFactory, StructuredRequest

MOST_TOP = 20
MOST_NAMED = 5
"""Wrong keys that an error names."""
CACHED = "prefixes are cached automatically"
ONE_TIER = "there is one tier"
NOTHING_STORED = "no reply is stored by it"
UNMODERATED = "this server does not moderate"
LARGEST = 2**62
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63, description="modulo 2**62")]
LONGEST_TEXT = 2**20
"""Characters that are encoded for a model of any context; the ids of more take the loop seconds to write."""
MOST_MESSAGES = 10_000
"""Of one conversation; checking a message takes the loop some 20 us."""


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = Field(default=False, description="usage so far in every chunk, with include_usage")
    include_obfuscation: bool | None = ignored("chunks are not padded")


class GenerateRequest(StructuredRequest):
    """Fields of both generating routes. Names beyond OpenAI's are vLLM's."""

    model: Text | None = None
    n: int = Field(default=1, ge=1, le=128)
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1, description="0 and -1 keep all")
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    seed: Seed | None = None
    min_tokens: int = Field(default=0, ge=0, description="number of tokens before any stop token or stop string counts")
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]] = Field(
        default={}, description="token id -> number added to its logit"
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MOST_STOPS)] = Field(default=[])
    stop_token_ids: list[TokenId] = Field(default=[])
    ignore_eos: bool = Field(default=False, description="continue past the model's own stop tokens")
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = Field(default=0, ge=-100, le=100, description="higher ones run first; keys bound it")
    user: Text = Field(default="", description="part of a session's name where no other field names it")
    return_token_ids: bool = Field(default=False, description="token ids of prompt and output, and weight versions")
    return_tokens_as_token_ids: bool = Field(default=False, description="logprobs write tokens as token_id:N")
    session_id: str | None = Field(default=None, description="requests of one session go to one engine of several")
    metadata: dict[str, Any] | None = ignored(NOTHING_STORED)
    store: bool | None = ignored(NOTHING_STORED)
    prompt_cache_key: str | None = ignored(CACHED)
    prompt_cache_options: dict[str, Any] | None = ignored(CACHED)
    prompt_cache_retention: str | None = ignored(CACHED)
    safety_identifier: str | None = ignored("users are not reported")
    service_tier: str | None = ignored(ONE_TIER)
    moderation: Annotated[Any, Refused(UNMODERATED)] = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_usage_so_far(self) -> bool:
        """Whether each chunk of a stream has the usage so far."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

    @property
    def prompt_only(self) -> bool:
        """Whether the reply contains the prompt only."""
        return False

    def spelling(self, tokenizer: Tokenizer, id_: int) -> str:
        """Returns a token as log-probs write it."""
        return f"token_id:{id_}" if self.return_tokens_as_token_ids else tokenizer.decode([id_])

    def check(self, server: ServerState) -> None:
        """Checks across fields.

        Raises:
            UnknownModelError: another model is requested.
            ConfigError: fields that contradict each other.
        """
        if self.model is not None and self.model != server.name:
            raise UnknownModelError(self.model, server.name)
        if self.stream_options is not None and not self.stream:
            raise ConfigError("stream_options", "given", "needs stream=true")

    def jobs(
        self,
        server: ServerState,
        prompts: Sequence[Sequence[int]],
        max_tokens: int | None,
        *,
        ends: Sequence[int],
        top_logprobs: int,
        prompt_logprobs: bool = False,
        matcher: MatcherFactory | None = None,
    ) -> list[Job]:
        """Returns ``n`` sequences for each prompt, in order, each with its own seed.

        Args:
            server: has the limits.
            prompts: token ids.
            max_tokens: None is as many as the context has room for.
            ends: the model's own stop tokens.
            top_logprobs, prompt_logprobs, matcher: see `SamplingParams`.

        Raises:
            ContextLengthError: there is no room for prompt and output.
            ConfigError: more sequences than may ever wait, or a key of `logit_bias` that is no token id.
        """
        most = server.engine.limits.waiting
        if len(prompts) * self.n > most:
            raise ConfigError("n", self.n, f"prompts times n must be at most {most}")
        seed = secrets.randbelow(LARGEST) if self.seed is None else self.seed % LARGEST
        stop_ids = tuple(dict.fromkeys([*(() if self.ignore_eos else ends), *self.stop_token_ids]))
        hidden = frozenset((*stop_ids, server.tokenizer.eos_id))
        biases = biases_of(self.logit_bias)
        if biases:
            check_ids("logit_bias", list(biases), server)
        jobs: list[Job] = []
        for prompt in prompts:
            room = server.longest - len(prompt)
            if (max_tokens or 1) > room:
                raise ContextLengthError(len(prompt), max_tokens, server.longest)
            if self.min_tokens > (max_tokens or room):
                raise ConfigError("min_tokens", self.min_tokens, f"must be at most max_tokens, {max_tokens or room}")
            for _ in range(self.n):
                watch = StopWatch(server.tokenizer, self.stops, hidden, self.min_tokens) if self.stops else None
                params = SamplingParams(
                    max_tokens or room, self.temperature, self.top_p, max(self.top_k, 0), self.min_p,
                    stop_token_ids=stop_ids, should_stop=watch, seed=seed + len(jobs),
                    presence_penalty=self.presence_penalty, frequency_penalty=self.frequency_penalty,
                    repetition_penalty=self.repetition_penalty, logit_bias=biases,
                    top_logprobs=top_logprobs, prompt_logprobs=prompt_logprobs, matcher=matcher,
                    min_new_tokens=self.min_tokens,
                )  # fmt: skip
                jobs.append(Job(prompt, params, self.stops, hidden))
        return jobs


def check_length(size: int, server: ServerState) -> None:
    """Refuses texts of a prompt that are too long by their bytes in UTF-8 alone, before they are tokenised.

    Raises:
        ContextLengthError: even if each token were the widest, they would not fit.
    """
    widest = server.tokenizer.widest
    if widest is not None and (least := -(-size // widest)) >= server.longest:
        raise ContextLengthError(least, None, server.longest, at_least=True)


def check_size(field: str, characters: int, server: ServerState) -> None:
    """Refuses texts of which it is not known how many tokens they become, where encoding them would take long.

    Raises:
        ConfigError: there are more characters than any prompt of the model has.
    """
    most = max(LONGEST_TEXT, 16 * server.longest)
    if characters > most:
        raise ConfigError(field, characters, f"must have at most {most:,} characters, not {characters:,}")


def check_ids(field: str, ids: Sequence[int], server: ServerState) -> None:
    """Refuses an empty list, and ids that the model does not have.

    Raises:
        ConfigError: names the first such id.
    """
    if not ids:
        raise ConfigError(field, [], "must hold at least one token")
    vocabulary = server.engine.limits.vocabulary
    if min(ids) < 0 or max(ids) >= vocabulary:
        outside = next(id_ for id_ in ids if not 0 <= id_ < vocabulary)
        raise ConfigError(field, outside, f"token ids must be in [0, {vocabulary}), not {outside}")


def biases_of(given: Mapping[str, float]) -> dict[int, float]:
    """Returns `logit_bias` by token ids."""
    wrong = [key for key in given if not (key.isascii() and key.isdigit() and len(key) < 10)]
    if wrong:
        shown = ", ".join(repr(key[:40]) for key in wrong[:MOST_NAMED])
        raise ConfigError("logit_bias", wrong[0], f"keys must be token ids, not {shown}")
    return {int(key): bias for key, bias in given.items()}
