"""What the requests of both generating routes have: sampling, stopping, structured output, and what is returned."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from arcforge_core.contracts.engine import Matcher, SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_serving.server.detokenize import StopWatch
from arcforge_serving.server.errors import ContextLengthError, UnknownModelError
from arcforge_serving.server.generation import Job
from arcforge_serving.server.state import ServerState

HARMLESS = (
    "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "store",
    "session_id",
)  # fmt: skip
"""Fields, most of OpenAI's service, that say nothing about the answer; taken and ignored."""
MOST_STOPS, LONGEST_STOP = 16, 1000
MOST_TOP = 20
LARGEST = 2**62


def encodable(text: str) -> str:
    """Refuses lone surrogates, which JSON can write and UTF-8 cannot."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("holds a lone surrogate, which is no character")
    return text


Text = Annotated[str, AfterValidator(encodable)]
StopString = Annotated[Text, Field(min_length=1, max_length=LONGEST_STOP)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Body(BaseModel):
    """A request, or a part of one. Unknown fields are refused; a field that is null counts as not given."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


class StreamOptions(Body):
    """What a stream says besides."""

    include_usage: bool = False
    include_obfuscation: bool = False
    """Taken and ignored: it pads chunks, and these are not padded."""


class StructuredOutputs(Body):
    """What the output must look like, as vLLM names it: one of these."""

    json_: dict[str, Any] | bool | Text | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: Annotated[list[Text], Field(min_length=1)] | None = None
    grammar: Text | None = None
    json_object: bool | None = None


class GenerateRequest(Body):
    """Fields of both generating routes. Those that OpenAI does not have are named as in vLLM."""

    model: Text | None = None
    n: int = Field(default=1, ge=1, le=128)
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1, description="0 and -1 keep all")
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, lt=LARGEST)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]] = Field(
        default={}, description="token id -> what is added to its logit"
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MOST_STOPS)] = []
    stop_token_ids: list[TokenId] = []
    ignore_eos: bool = Field(default=False, description="go on behind the model's own stop tokens")
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = Field(default=0, ge=-100, le=100, description="higher ones go first")
    user: Text = Field(default="", description="users take turns")
    return_token_ids: bool = Field(default=False, description="token ids of prompt and output, and weight versions")
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | Text | None = None
    guided_regex: Text | None = None
    guided_choice: Annotated[list[Text], Field(min_length=1)] | None = None
    guided_grammar: Text | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = Field(default=None, description="requests of one session go to one engine of several")
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def prompt_only(self) -> bool:
        """Whether what is generated is not wanted."""
        return False

    def check(self, server: ServerState) -> None:
        """Refuses what no field says by itself.

        Raises:
            UnknownModelError: another model is asked for.
            ConfigError: fields that do not go together.
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
        matcher: Callable[[], Matcher] | None = None,
    ) -> list[Job]:
        """Returns ``n`` sequences for each prompt, in order, which sample from seeds of their own.

        Args:
            server: has the limits.
            prompts: token ids.
            max_tokens: None is as many as there is room for.
            ends: the model's own stop tokens.
            top_logprobs, prompt_logprobs, matcher: see `SamplingParams`.

        Raises:
            ContextLengthError: there is no room for prompt and output.
            ConfigError: more sequences than may ever wait, or a key of `logit_bias` that is no token id.
        """
        most = server.engine.config.max_waiting
        if len(prompts) * self.n > most:
            raise ConfigError("n", self.n, f"prompts times n must be at most {most}")
        seed = secrets.randbelow(LARGEST) if self.seed is None else self.seed
        stop_ids = tuple(dict.fromkeys([*(() if self.ignore_eos else ends), *self.stop_token_ids]))
        hidden = frozenset((*stop_ids, server.tokenizer.eos_id))
        biases = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        jobs: list[Job] = []
        for prompt in prompts:
            room = server.longest - len(prompt)
            if (max_tokens or 1) > room:
                raise ContextLengthError(len(prompt), max_tokens, server.longest)
            for _ in range(self.n):
                watch = StopWatch(server.tokenizer, self.stops, hidden) if self.stops else None
                params = SamplingParams(
                    max_tokens or room, self.temperature, self.top_p, max(self.top_k, 0), self.min_p,
                    stop_token_ids=stop_ids, should_stop=watch, seed=seed + len(jobs),
                    presence_penalty=self.presence_penalty, frequency_penalty=self.frequency_penalty,
                    repetition_penalty=self.repetition_penalty, logit_bias=biases,
                    top_logprobs=top_logprobs, prompt_logprobs=prompt_logprobs, matcher=matcher,
                )  # fmt: skip
                jobs.append(Job(prompt, params, self.stops, hidden))
        return jobs


def check_ids(field: str, ids: Sequence[int], server: ServerState) -> None:
    """Refuses ids that the model does not have, and nothing at all.

    Raises:
        ConfigError: names the first one.
    """
    if not ids:
        raise ConfigError(field, [], "must hold at least one token")
    vocabulary = server.config.vocab_size
    outside = next((id_ for id_ in ids if not 0 <= id_ < vocabulary), None)
    if outside is not None:
        raise ConfigError(field, outside, f"token ids must be in [0, {vocabulary}), not {outside}")


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 10):
        raise ConfigError("logit_bias", key, f"keys must be token ids, not {key[:40]!r}")
    return int(key)
