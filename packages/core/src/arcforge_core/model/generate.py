"""Cached generation for a batch of prompts of any lengths. Shapes: N live sequences, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.errors import ConfigError

if TYPE_CHECKING:
    from arcforge_core.model.causal_lm import CausalLM


def filter_logits(logits_V: Tensor, params: SamplingParams) -> Tensor:
    """Applies temperature, then top-k, top-p and min-p on its distribution; dropped tokens become -inf.

    `params.temperature` must be above 0. The likeliest token always stays.
    """
    logits_V = logits_V / params.temperature
    sorted_V, order_V = logits_V.sort(descending=True, stable=True)
    probs_V = sorted_V.softmax(-1)
    keep_V = torch.ones_like(probs_V, dtype=torch.bool)
    if params.top_k:
        keep_V[params.top_k :] = False
    keep_V &= probs_V.cumsum(-1) - probs_V < params.top_p
    keep_V &= probs_V >= params.min_p * probs_V[0]
    keep_V[0] = True
    kept_V = torch.where(keep_V, sorted_V, float("-inf"))
    return torch.empty_like(logits_V).scatter_(0, order_V, kept_V)


def sample(logits_V: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
    """Returns a token id; greedy takes the lowest id among equal maxima."""
    if params.temperature == 0.0:
        return int((logits_V == logits_V.max()).nonzero()[0])
    probs_V = filter_logits(logits_V, params).softmax(-1)
    return int(torch.multinomial(probs_V.cpu(), 1, generator=generator))


@torch.inference_mode()
def generate(
    model: CausalLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], weight_version: int = 0
) -> list[GenerationOutput]:
    """Prefills all prompts in one ragged batch, then decodes the live ones together.

    Raises:
        ConfigError: an empty prompt, an id outside the vocabulary, or a length above max_position_embeddings.
    """
    config = model.config
    for prompt, param in zip(prompts, params, strict=True):
        if not prompt:
            raise ConfigError("prompt", [], "must hold at least one token")
        if min(prompt) < 0 or max(prompt) >= config.vocab_size:
            raise ConfigError("prompt", list(prompt)[:8], f"token ids must be below {config.vocab_size}")
        if len(prompt) + param.max_new_tokens > config.max_position_embeddings:
            total, limit = len(prompt) + param.max_new_tokens, config.max_position_embeddings
            raise ConfigError("max_new_tokens", param.max_new_tokens, f"prompt and output are {total} > {limit} tokens")
    was_training = model.training
    model.eval()
    cache = model.new_cache([len(p) + s.max_new_tokens for p, s in zip(prompts, params, strict=True)])
    generators = [torch.Generator().manual_seed(s.seed) for s in params]
    token_ids: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    reasons = ["length"] * len(prompts)
    live = list(range(len(prompts)))
    feed = [list(p) for p in prompts]
    while live:
        lengths = [len(feed[n]) for n in live]
        batch = cache.batch(live, lengths)
        tokens_T = torch.tensor([t for n in live for t in feed[n]], device=model.device)
        hidden_TD = model.hidden(tokens_T, batch, cache).hidden_TD
        last_N = (batch.cu_query[1:] - 1).to(torch.int64).to(model.device)
        logits_NV = model.logits(hidden_TD[last_N]).float()
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
    model.train(was_training)
    return [
        GenerationOutput(ids, lps, reason, weight_version)
        for ids, lps, reason in zip(token_ids, logprobs, reasons, strict=True)
    ]


def generate_tokens(model: CausalLM, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[GenerationOutput]:
    """`generate` with one set of sampling fields; sequence n draws from seed + n."""
    base = SamplingParams(**{"temperature": 0.0, **sampling})
    params = [SamplingParams(**{**base.__dict__, "seed": base.seed + n}) for n in range(len(prompts))]
    return generate(model, prompts, params)
