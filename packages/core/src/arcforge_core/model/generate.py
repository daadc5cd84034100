"""Cached generation for a batch of prompts of any lengths. Shapes: N live sequences, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.errors import CheckpointError, ConfigError

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
    for name, ids in (("prompt", prompt), ("stop_token_ids", params.stop_token_ids)):
        outside = [i for i in ids if not 0 <= i < vocabulary]
        if outside:
            raise ConfigError(name, outside[0], f"token ids must be in [0, {vocabulary})")
    if len(prompt) + params.max_new_tokens > limit:
        raise ConfigError(
            "max_new_tokens",
            params.max_new_tokens,
            f"must be at most {limit - len(prompt)}: the prompt has {len(prompt)} tokens, the model {limit} positions",
        )


def filter_logits(logits_V: Tensor, params: SamplingParams) -> Tensor:
    """Applies temperature, top-k, top-p and min-p in this order; dropped tokens become -inf.

    Each looks at what the ones before it left, renormalised. `params.temperature` must be above 0. The likeliest
    token always stays; among equals the lower id is the likelier.
    """
    # float64, and the maximum at 0, because any temperature above 0 must give a distribution
    logits_V = (logits_V.double() - logits_V.max()) / params.temperature
    sorted_V, order_V = logits_V.sort(descending=True, stable=True)
    if 0 < params.top_k < len(sorted_V):
        sorted_V[params.top_k :] = float("-inf")
    probs_V = sorted_V.softmax(-1)
    keep_V = probs_V >= params.min_p * probs_V[0]
    if params.top_p < 1.0:  # at 1 rounding of the sum must not cost the tail
        keep_V &= probs_V.cumsum(-1) - probs_V < params.top_p
    keep_V[0] = True
    kept_V = torch.where(keep_V, sorted_V, float("-inf"))
    return torch.empty_like(logits_V).scatter_(0, order_V, kept_V)


def sample(logits_V: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    """Returns a token id drawn from host logits; greedy takes the lowest id among equal maxima."""
    if params.temperature == 0.0:
        return int((logits_V == logits_V.max()).nonzero()[0])
    return int(torch.multinomial(filter_logits(logits_V, params).softmax(-1), 1, generator=generator))


@contextmanager
def evaluating(model: CausalLM) -> Iterator[None]:
    """Puts the model into eval mode and back."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@torch.inference_mode()
def generate(
    model: CausalLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], weight_version: int = 0
) -> list[GenerationOutput]:
    """Prefills all prompts in one ragged batch, then decodes the live ones together.

    Raises:
        ConfigError: see `check_request`.
        CheckpointError: the logits are not finite.
    """
    for prompt, param in zip(prompts, params, strict=True):
        check_request(model.config, prompt, param)
    cache = model.new_cache([len(p) + s.max_new_tokens for p, s in zip(prompts, params, strict=True)])
    generators = [torch.Generator().manual_seed(s.seed) for s in params]
    token_ids: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    reasons = ["length"] * len(prompts)
    live = list(range(len(prompts)))
    feed = [list(p) for p in prompts]
    with evaluating(model):
        while live:
            batch = cache.batch(live, [len(feed[n]) for n in live])
            tokens_T = torch.tensor([t for n in live for t in feed[n]], device=model.device)
            hidden_TD = model.hidden(tokens_T, batch, cache).hidden_TD
            last_N = (batch.cu_query[1:] - 1).to(torch.int64).to(model.device)
            logits_NV = model.logits(hidden_TD[last_N]).float().cpu()
            if not logits_NV.isfinite().all():
                raise CheckpointError("the model's logits are not finite: its weights are damaged or have diverged")
            logprobs_NV = logits_NV.log_softmax(-1)
            for row, n in enumerate(list(live)):
                token = sample(logits_NV[row], params[n], generators[n])
                token_ids[n].append(token)
                logprobs[n].append(float(logprobs_NV[row, token]))
                feed[n] = [token]
                if token in params[n].stop_token_ids:
                    reasons[n] = "stop"
                    live.remove(n)
                elif len(token_ids[n]) == params[n].max_new_tokens:
                    live.remove(n)
    return [
        GenerationOutput(ids, lps, reason, weight_version)
        for ids, lps, reason in zip(token_ids, logprobs, reasons, strict=True)
    ]


def generate_tokens(model: CausalLM, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[GenerationOutput]:
    """`generate` with one set of sampling fields; sequence n draws from seed + n."""
    base = SamplingParams(**{"temperature": 0.0, **sampling})
    params = [replace(base, seed=base.seed + n) for n in range(len(prompts))]
    return generate(model, prompts, params)
