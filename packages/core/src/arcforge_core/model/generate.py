"""Cached generation for a batch of prompts of any lengths.

Shapes: T tokens of a step, N live sequences, S tokens of a prompt, V vocabulary, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arcforge_core.contracts.engine import GenerationOutput, Matcher, SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.model.sampling import Sampler, Token, check_finite, next_tokens, score

if TYPE_CHECKING:
    from arcforge_core.config.schema import ModelConfig
    from arcforge_core.model.causal_lm import CausalLM


def check_request(config: ModelConfig, prompt: Sequence[int], params: SamplingParams) -> None:
    """Refuses what cannot be generated, before any work.

    Raises:
        ConfigError: an empty prompt, an id outside the vocabulary, or a length above max_position_embeddings.
    """
    vocabulary, limit = config.vocab_size, config.max_position_embeddings
    if not len(prompt):
        raise ConfigError("prompt", [], "must hold at least one token")
    given = (("prompt", prompt), ("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias))
    for name, ids in given:
        outside = [i for i in ids if not 0 <= i < vocabulary]
        if outside:
            raise ConfigError(name, outside[0], f"token ids must be in [0, {vocabulary})")
    if len(prompt) + params.max_new_tokens > limit:
        raise ConfigError(
            "max_new_tokens",
            params.max_new_tokens,
            f"must be at most {limit - len(prompt)}: the prompt has {len(prompt)} tokens, the model {limit} positions",
        )


@contextmanager
def evaluating(model: CausalLM) -> Iterator[None]:
    """Puts the model into eval mode and back."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def ended(params: SamplingParams, token_ids: Sequence[int], matcher: Matcher | None) -> str | None:
    """Returns why a sequence ends with the token it got last, None when it goes on."""
    if token_ids[-1] in params.stop_token_ids or (params.should_stop is not None and params.should_stop(token_ids)):
        return "stop"
    if matcher is not None and matcher.finished:
        return "stop"
    return "length" if len(token_ids) == params.max_new_tokens else None


class _Sequence:
    """One sequence of a static batch."""

    def __init__(self, prompt: Sequence[int], params: SamplingParams, index: int, vocabulary: int) -> None:
        self.prompt, self.params = list(prompt), params
        self.feed = self.prompt
        self.sampler = Sampler(params, index, prompt, vocabulary)
        self.matcher = None if params.matcher is None else params.matcher()
        self.tokens: list[Token] = []
        self.prompt_tokens: list[Token] = []
        self.reason: str | None = None

    def take(self, token: Token) -> None:
        """Appends a token and decides whether it was the last one."""
        self.tokens.append(token)
        self.feed = [token.id]
        self.sampler.observe(token.id)
        if self.matcher is not None:
            self.matcher.accept(token.id)
        self.reason = ended(self.params, [t.id for t in self.tokens], self.matcher)

    def output(self, version: int) -> GenerationOutput:
        """Returns what was generated."""
        return output_of(
            self.params, self.tokens, self.prompt_tokens, self.reason or "length", [(version, len(self.tokens))]
        )


def output_of(
    params: SamplingParams, tokens: Sequence[Token], prompt_tokens: Sequence[Token], reason: str,
    versions: list[tuple[int, int]], cached_tokens: int = 0,
) -> GenerationOutput:  # fmt: skip
    """Puts an output together from its tokens."""
    return GenerationOutput(
        [t.id for t in tokens],
        [t.logprob for t in tokens],
        reason,
        versions[-1][0],
        versions,
        [t.top for t in tokens] if params.top_logprobs else [],
        [t.logprob for t in prompt_tokens],
        [t.top for t in prompt_tokens] if params.top_logprobs else [],
        cached_tokens,
    )


@torch.inference_mode()
def generate(
    model: CausalLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], weight_version: int = 0
) -> list[GenerationOutput]:
    """Prefills all prompts in one ragged batch, each as often as it is to be continued, then decodes the live ones.

    Raises:
        ConfigError: see `check_request`.
        CheckpointError: the logits are not finite.
    """
    for prompt, param in zip(prompts, params, strict=True):
        check_request(model.config, prompt, param)
    vocabulary = model.config.vocab_size
    sequences = [
        _Sequence(prompt, param, index, vocabulary)
        for prompt, param in zip(prompts, params, strict=True)
        for index in range(param.n)
    ]
    cache = model.new_cache([len(s.prompt) + s.params.max_new_tokens for s in sequences])
    live = list(range(len(sequences)))
    with evaluating(model):
        while live:
            rows = [sequences[n] for n in live]
            batch = cache.batch(live, [len(s.feed) for s in rows])
            tokens_T = torch.tensor([t for s in rows for t in s.feed], device=model.device)
            hidden_TD = model.hidden(tokens_T, batch, cache).hidden_TD
            ends = batch.cu_query[1:].tolist()
            for sequence, end in zip(rows, ends, strict=True):
                if sequence.params.prompt_logprobs and not sequence.tokens:
                    hidden_SD = hidden_TD[end - len(sequence.prompt) : end - 1]
                    targets, top = sequence.prompt[1:], sequence.params.top_logprobs
                    sequence.prompt_tokens = score_hidden(model, hidden_SD, targets, top)
            logits_NV = model.logits(hidden_TD[torch.tensor(ends, device=model.device) - 1])
            likeliest = model.likeliest(logits_NV)
            check_finite(likeliest)
            allowed = [None if s.matcher is None else s.matcher.allowed() for s in rows]
            tokens = next_tokens(logits_NV.cpu(), [s.sampler for s in rows], allowed, None, likeliest, model.race)
            for sequence, token in zip(rows, tokens, strict=True):
                sequence.take(token)
            live = [n for n in live if sequences[n].reason is None]
    return [sequence.output(weight_version) for sequence in sequences]


def score_hidden(model: CausalLM, hidden_SD: Tensor, targets: Sequence[int], top: int, rows: int = 256) -> list[Token]:
    """Returns what the hidden states say about the tokens that follow them, of so many rows at a time."""
    tokens: list[Token] = []
    for start in range(0, len(targets), rows):
        ids = targets[start : start + rows]
        logits_NV = model.logits(hidden_SD[start : start + rows])
        tokens += score(logits_NV.cpu(), ids, [top] * len(ids), model.likeliest(logits_NV))
    return tokens


def generate_tokens(model: CausalLM, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[GenerationOutput]:
    """`generate` with one set of sampling fields; sequence n draws from seed + n."""
    base = SamplingParams(**{"temperature": 0.0, **sampling})
    params = [replace(base, seed=base.seed + n) for n in range(len(prompts))]
    return generate(model, prompts, params)
