"""Cached generation for a batch of prompts of different lengths.

Shapes: T tokens in a step, N live sequences, S tokens in a prompt, V vocabulary, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from arcforge_core.config.schema import ModelConfig
from arcforge_core.contracts.engine import GenerationOutput, Matcher, SamplingParams, Token
from arcforge_core.errors import ConfigError
from arcforge_core.generation.recorded import Recorded
from arcforge_core.generation.sampling import Sampler, SamplingOps, check_finite, next_tokens, score
from arcforge_core.model.causal_lm import CausalLM


def check_request(config: ModelConfig, prompt: Sequence[int], params: SamplingParams) -> None:
    """Rejects requests that cannot be generated, before any computation.

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
    """Switches the model to eval mode inside the context and restores its mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def ended(params: SamplingParams, token_ids: Sequence[int], matcher: Matcher | None, prompt: int = 0) -> str | None:
    """Returns the finish reason if the last token ends the sequence; None if it continues.

    Args:
        params: of the sequence.
        token_ids: its tokens.
        matcher: its grammar.
        prompt: number of the tokens that are its prompt's.
    """
    generated = len(token_ids) - prompt
    stops = token_ids[-1] in params.stop_token_ids
    stops = stops or (params.should_stop is not None and params.should_stop(token_ids[prompt:]))
    if stops and generated > params.min_new_tokens:
        return "stop"
    if matcher is not None and matcher.finished:
        return "stop"
    return "length" if generated == params.max_new_tokens else None


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
        """Appends a token and checks whether it ends the sequence."""
        self.tokens.append(token)
        self.feed = [token.id]
        self.sampler.observe(token.id)
        if self.matcher is not None:
            self.matcher.accept(token.id)
        self.reason = ended(self.params, [t.id for t in self.tokens], self.matcher)

    def output(self, version: int) -> GenerationOutput:
        return output_of(
            self.params, self.tokens, self.prompt_tokens, self.reason or "length", [(version, len(self.tokens))]
        )


def output_of(
    params: SamplingParams, tokens: Sequence[Token], prompt_tokens: Sequence[Token], reason: str,
    versions: list[tuple[int, int]], cached_tokens: int = 0,
) -> GenerationOutput:  # fmt: skip
    """Assembles an output from its tokens."""
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
    """Prefills all prompts in one ragged batch, each `n` times, then decodes until every sequence has ended.

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
    recorded, ops = Recorded(model, cache), SamplingOps(model)
    live = list(range(len(sequences)))
    with evaluating(model):
        while live:
            rows = [sequences[n] for n in live]
            batch = cache.batch(live, [len(s.feed) for s in rows])
            tokens_T = torch.tensor([t for s in rows for t in s.feed], device=model.device)
            hidden_TD = recorded.hidden(tokens_T, batch)
            ends = batch.cu_query[1:].tolist()
            for sequence, end in zip(rows, ends, strict=True):
                if sequence.params.prompt_logprobs and not sequence.tokens:
                    hidden_SD = hidden_TD[end - len(sequence.prompt) : end - 1]
                    targets, top = sequence.prompt[1:], sequence.params.top_logprobs
                    sequence.prompt_tokens = score_hidden(model, ops, hidden_SD, targets, top)
            logits_NV = model.logits(hidden_TD[torch.tensor(ends, device=model.device) - 1])
            known = ops.argmax_logprob(logits_NV)
            check_finite(known)
            allowed = [None if s.matcher is None else s.matcher.allowed() for s in rows]
            tokens = next_tokens(logits_NV.cpu(), [s.sampler for s in rows], allowed, None, known, ops.sample)
            for sequence, token in zip(rows, tokens, strict=True):
                sequence.take(token)
            live = [n for n in live if sequences[n].reason is None]
    return [sequence.output(weight_version) for sequence in sequences]


def score_hidden(
    model: CausalLM, ops: SamplingOps, hidden_SD: Tensor, targets: Sequence[int], top: int, rows: int = 256
) -> list[Token]:
    """Returns the target tokens with their log-probs given the hidden states, computed `rows` rows at a time."""
    tokens: list[Token] = []
    for start in range(0, len(targets), rows):
        ids = targets[start : start + rows]
        logits_NV = model.logits(hidden_SD[start : start + rows])
        tokens += score(logits_NV.cpu(), ids, [top] * len(ids), ops.argmax_logprob(logits_NV))
    return tokens


def continue_prompts(model: CausalLM, input_ids: Tensor | list[list[int]], **sampling: Any) -> Tensor:
    """Generates continuations of prompts in one static batch: `CausalLM.generate`.

    Args:
        model: the model.
        input_ids: int64 [B, S], or a list of prompts of different lengths.
        sampling: fields of `SamplingParams` (max_new_tokens, temperature, top_p, top_k, min_p, stop_token_ids, seed);
            greedy unless a temperature is given. Prompt n draws from seed + n.

    Returns:
        int64 [B, longest]: prompts with their continuations, padded at the end with -1 when lengths differ.

    Raises:
        ConfigError: the list of prompts is empty, or `check_request` rejects a prompt.
    """
    prompts: list[Any] = input_ids.tolist() if isinstance(input_ids, Tensor) else input_ids
    if not prompts or isinstance(prompts[0], int):
        raise ConfigError("input_ids", prompts[:3], "must be a list of at least one prompt, or int64 [B, S]")
    base = SamplingParams(**{"temperature": 0.0, **sampling})
    outputs = generate(model, prompts, [replace(base, seed=base.seed + n) for n in range(len(prompts))])
    rows = [torch.tensor([*p, *o.token_ids]) for p, o in zip(prompts, outputs, strict=True)]
    return pad_sequence(rows, batch_first=True, padding_value=-1).to(model.device)
