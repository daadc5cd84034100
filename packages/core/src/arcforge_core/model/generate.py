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


def filter_logits(logits_NV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Applies each row's temperature, top-k, top-p and min-p in this order; dropped tokens become -inf.

    Each looks at what the ones before it left, renormalised. Temperatures must be above 0. The likeliest token always
    stays; among equals the lower id is the likelier. Returns float64 [N, V].
    """

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[:, None]

    # float64, and the maximum at 0, because any temperature above 0 must give a distribution
    logits_NV = logits_NV.double()
    logits_NV = (logits_NV - logits_NV.amax(-1, keepdim=True)) / column([p.temperature for p in params])
    if all(p.top_k == 0 and p.top_p == 1.0 and p.min_p == 0.0 for p in params):
        return logits_NV  # sparing the sort, the dearest part
    vocabulary = logits_NV.shape[1]
    sorted_NV, order_NV = logits_NV.sort(dim=-1, descending=True, stable=True)
    kept_count_N1 = column([min(p.top_k or vocabulary, vocabulary) for p in params])
    sorted_NV = sorted_NV.masked_fill(torch.arange(vocabulary) >= kept_count_N1, float("-inf"))
    probs_NV = sorted_NV.softmax(-1)
    top_p_N1 = column([p.top_p if p.top_p < 1.0 else 2.0 for p in params])  # at 1, rounding must not cost the tail
    keep_NV = probs_NV.cumsum(-1) - probs_NV < top_p_N1
    keep_NV &= probs_NV >= column([p.min_p for p in params]) * probs_NV[:, :1]
    keep_NV[:, 0] = True
    return torch.empty_like(logits_NV).scatter_(1, order_NV, sorted_NV.masked_fill(~keep_NV, float("-inf")))


def sample(logits_NV: Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator]) -> list[int]:
    """Draws one id for each row of host logits, from its own generator; greedy takes the lowest id of equal maxima."""
    ids_V = torch.arange(logits_NV.shape[1])
    best_NV = logits_NV == logits_NV.amax(-1, keepdim=True)
    chosen_N = torch.where(best_NV, ids_V, len(ids_V)).amin(-1)
    drawn = [n for n, p in enumerate(params) if p.temperature > 0.0]
    if drawn:
        probs_NV = filter_logits(logits_NV[drawn], [params[n] for n in drawn]).softmax(-1)
        sums_NV = probs_NV.cumsum(-1)
        draws = [torch.rand(1, dtype=torch.float64, generator=generators[n]) for n in drawn]
        total_N1 = sums_NV[:, -1:]
        draw_N1 = torch.minimum(torch.stack(draws) * total_N1, torch.nextafter(total_N1, torch.zeros_like(total_N1)))
        chosen_N[drawn] = torch.searchsorted(sums_NV, draw_N1, right=True)[:, 0]
    chosen: list[int] = chosen_N.tolist()
    return chosen


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
            tokens = sample(logits_NV, [params[n] for n in live], [generators[n] for n in live])
            chosen_N = logits_NV.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
            for n, token, logprob in zip(list(live), tokens, chosen_N.tolist(), strict=True):
                token_ids[n].append(token)
                logprobs[n].append(logprob)
                feed[n] = [token]
                should_stop = params[n].should_stop
                if token in params[n].stop_token_ids or (should_stop is not None and should_stop(token_ids[n])):
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
