"""Requests and replies of ``/v1/completions``: the part of OpenAI's API that is served, and nothing that is not."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from arcforge_core.config.schema import ModelConfig
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.errors import ConfigError
from arcforge_core.model.generate import check_request


def encodable(text: str) -> str:
    """Refuses lone surrogates, which JSON can write and UTF-8 cannot."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("holds a lone surrogate, which is no character")
    return text


Text = Annotated[str, AfterValidator(encodable)]
StopString = Annotated[Text, Field(min_length=1)]


class CompletionRequest(BaseModel):
    """The body. A string is encoded as the start of a document; token ids are taken as they are."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    prompt: Text | list[int] | list[Text] | list[list[int]]
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=0, lt=2**62)
    n: int = Field(default=1, ge=1, le=128)
    logprobs: Literal[0] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=4)] | None = None
    stop_token_ids: list[int] = []
    return_token_ids: bool = False

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        """Returns the token ids of each prompt.

        Raises:
            ConfigError: there is no prompt.
        """
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        if not given:
            raise ConfigError("prompt", [], "must hold at least one prompt of at least one token")
        return [[tokenizer.bos_id, *tokenizer.encode(p)] if isinstance(p, str) else p for p in given]

    def sampling(self, count: int, tokenizer: Tokenizer) -> list[SamplingParams]:
        """Returns parameters for `count` sequences, which sample from seeds of their own."""
        seed = secrets.randbelow(2**62) if self.seed is None else self.seed
        params = SamplingParams(
            self.max_tokens,
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            stop_token_ids=(tokenizer.eos_id, *self.stop_token_ids),
            should_stop=(lambda ids: self.end(visible(ids, tokenizer)) is not None) if self.stop else None,
        )
        return [replace(params, seed=seed + index) for index in range(count)]

    def end(self, text: str) -> int | None:
        """Returns where the first stop string begins, None where there is none."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return min((position for position in map(text.find, stop) if position >= 0), default=None)


@dataclass(frozen=True)
class Work:
    """A checked request: each prompt `n` times, in order.

    Attributes:
        prompts: token ids, one entry per sequence.
        params: one per sequence.
        prompt_tokens: tokens of the prompts, each counted once.
    """

    prompts: list[list[int]]
    params: list[SamplingParams]
    prompt_tokens: int


def prepare(request: CompletionRequest, tokenizer: Tokenizer, config: ModelConfig) -> Work:
    """Encodes and checks a request.

    Raises:
        ConfigError: the model cannot serve it.
    """
    prompts = request.prompts(tokenizer)
    params = request.sampling(len(prompts) * request.n, tokenizer)
    for prompt in prompts:
        check_request(config, prompt, params[0])
    return Work([p for p in prompts for _ in range(request.n)], params, sum(map(len, prompts)))


def reply(
    request: CompletionRequest, work: Work, outputs: list[GenerationOutput], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Returns choices and usage."""
    completions = [cut(output, request, tokenizer) for output in outputs]
    choices = []
    for index, completion in enumerate(completions):
        choice: dict[str, Any] = {
            "index": index,
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "logprobs": None if request.logprobs is None else completion.logprobs_object(tokenizer),
        }
        if request.return_token_ids:
            choice |= {"prompt_token_ids": work.prompts[index], "token_ids": completion.token_ids}
        choices.append(choice)
    completion_tokens = sum(len(c.token_ids) for c in completions)
    usage = {
        "prompt_tokens": work.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": work.prompt_tokens + completion_tokens,
    }
    return {"choices": choices, "usage": usage}


@dataclass(frozen=True)
class Completion:
    """A sequence as the client sees it: up to a stop string, which ended it and is not shown."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str

    def logprobs_object(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Returns the log-probs of the chosen tokens; offsets count characters of the text."""
        starts = [len(visible(self.token_ids[:i], tokenizer)) for i in range(len(self.token_ids))]
        return {
            "tokens": [tokenizer.decode([i]) for i in self.token_ids],
            "token_logprobs": self.logprobs,
            "text_offset": starts,
            "top_logprobs": None,
        }


def cut(output: GenerationOutput, request: CompletionRequest, tokenizer: Tokenizer) -> Completion:
    """Ends a sequence's text before the stop string that ended it."""
    text = visible(output.token_ids, tokenizer)
    return Completion(text[: request.end(text)], output.token_ids, output.logprobs, output.finish_reason)


def visible(token_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Returns the text without end-of-text tokens."""
    return tokenizer.decode([i for i in token_ids if i != tokenizer.eos_id])
