"""Drawing the next token of every row of a batch, each by its own parameters. Shapes: N rows, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arcforge_core.contracts.engine import SamplingParams, TopLogprobs
from arcforge_core.errors import CheckpointError
from arcforge_core.ops.likeliest import likeliest as plain_likeliest


@dataclass(frozen=True)
class Token:
    """A chosen or given token, with its log-prob and those of the likeliest tokens at its position."""

    id: int
    logprob: float
    top: TopLogprobs


class Sampler:
    """What one sequence brings to the choice of its next token.

    Args:
        params: its parameters.
        index: which of its request's ``params.n`` sequences it is.
        prompt: ids that the repetition penalty counts as said.
        vocabulary: V.
    """

    def __init__(self, params: SamplingParams, index: int, prompt: Sequence[int], vocabulary: int) -> None:
        self.params = params
        self.generator = torch.Generator().manual_seed(params.seed + index)
        self.counts_V: Tensor | None = None
        if params.penalises:
            self.counts_V = torch.zeros(vocabulary)
            self.prompted_V = torch.zeros(vocabulary, dtype=torch.bool)
            self.prompted_V[list(prompt)] = True

    def observe(self, token: int) -> None:
        """Counts a token that was generated."""
        if self.counts_V is not None:
            self.counts_V[token] += 1


Likeliest = tuple[Tensor, Tensor]
"""What `ops.likeliest` says about rows of logits, on the host."""


def next_tokens(
    logits_NV: Tensor,
    samplers: Sequence[Sampler],
    allowed: Sequence[Tensor | None] | None = None,
    likeliest: Likeliest | None = None,
) -> list[Token]:
    """Draws a token for each row of host logits, and has its sampler count it.

    Args:
        logits_NV: finite logits.
        samplers: one for each row.
        allowed: of each row bool [V], the tokens that its grammar lets through, or None.
        likeliest: what is known of the rows, computed if it is not given. Greedy rows that are unchanged need no more.
    """
    likeliest = likeliest or plain_likeliest(logits_NV)
    allowed = allowed or [None] * len(samplers)
    ids: list[int] = likeliest[0].tolist()
    others = [n for n, s in enumerate(samplers) if s.params.temperature > 0.0 or _changes(s, allowed[n])]
    if others:
        rows_NV = logits_NV if len(others) == len(samplers) else logits_NV[others]
        mine = [samplers[n] for n in others]
        changed_NV = adjust(
            rows_NV.to(torch.promote_types(rows_NV.dtype, torch.float32)), mine, [allowed[n] for n in others]
        )
        drawn = sample(changed_NV, [s.params for s in mine], [s.generator for s in mine])
        for n, token in zip(others, drawn, strict=True):
            ids[n] = token
    for sampler, token in zip(samplers, ids, strict=True):
        sampler.observe(token)
    return score(logits_NV, ids, [s.params.top_logprobs for s in samplers], likeliest)


def _changes(sampler: Sampler, allowed_V: Tensor | None) -> bool:
    """Says whether `adjust` does anything to a row."""
    return bool(sampler.params.logit_bias) or sampler.counts_V is not None or allowed_V is not None


def finite_rows(likeliest: Likeliest) -> list[bool]:
    """Says of each row whether all its logits are finite."""
    finite: list[bool] = likeliest[1].isfinite().tolist()
    return finite


def check_finite(likeliest: Likeliest) -> None:
    """Raises `CheckpointError` when a logit is not finite."""
    if not all(finite_rows(likeliest)):
        raise CheckpointError("the model's logits are not finite: its weights are damaged or have diverged")


def score(logits_NV: Tensor, ids: Sequence[int], top: Sequence[int], likeliest: Likeliest | None = None) -> list[Token]:
    """Returns each row's token with its log-prob, and those of so many of the likeliest tokens."""
    best_N, rest_N = likeliest or plain_likeliest(logits_NV)
    largest_N1, rest_N1 = logits_NV.gather(1, best_N[:, None]).to(rest_N.dtype), rest_N[:, None]
    chosen_N1 = logits_NV.gather(1, torch.tensor(ids)[:, None]).to(rest_N.dtype)
    chosen_N = (chosen_N1 - largest_N1 - rest_N1)[:, 0].tolist()
    tops: list[TopLogprobs] = [[] for _ in ids]
    asked = [n for n, count in enumerate(top) if count]
    if asked:
        most = min(max(top), logits_NV.shape[1])
        logits_NK, ids_NK = logits_NV[asked].topk(most)
        values_NK = logits_NK.to(rest_N.dtype) - largest_N1[asked] - rest_N1[asked]
        for n, values, numbers in zip(asked, values_NK.tolist(), ids_NK.tolist(), strict=True):
            pairs = sorted(zip(numbers, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
            tops[n] = pairs[: top[n]]
    return [Token(*token) for token in zip(ids, chosen_N, tops, strict=True)]


def adjust(logits_NV: Tensor, samplers: Sequence[Sampler], allowed: Sequence[Tensor | None]) -> Tensor:
    """Applies logit bias, repetition, frequency and presence penalties and grammars, in this order; the input stays."""
    biased = [n for n, s in enumerate(samplers) if s.params.logit_bias]
    penalised = [n for n, s in enumerate(samplers) if s.counts_V is not None]
    masked = [n for n, mask in enumerate(allowed) if mask is not None]
    if not biased and not penalised and not masked:
        return logits_NV
    logits_NV = logits_NV.clone()
    for n in biased:
        bias = samplers[n].params.logit_bias
        logits_NV[n, list(bias)] += torch.tensor(list(bias.values()))
    if penalised:
        logits_NV[penalised] = _penalise(logits_NV[penalised], [samplers[n] for n in penalised])
    if masked:
        kept_NV = torch.stack([mask for mask in allowed if mask is not None])
        logits_NV[masked] = logits_NV[masked].masked_fill(~kept_NV, float("-inf"))
    return logits_NV


def _penalise(logits_NV: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values)[:, None]

    params = [sampler.params for sampler in samplers]
    counts_NV = torch.stack([sampler.counts_V for sampler in samplers if sampler.counts_V is not None])
    generated_NV = counts_NV > 0
    said_NV = generated_NV | torch.stack([sampler.prompted_V for sampler in samplers])
    factor_N1 = column([p.repetition_penalty for p in params])
    repeated_NV = torch.where(logits_NV > 0, logits_NV / factor_N1, logits_NV * factor_N1)
    logits_NV = torch.where(said_NV, repeated_NV, logits_NV)
    logits_NV = logits_NV - column([p.frequency_penalty for p in params]) * counts_NV
    return logits_NV - column([p.presence_penalty for p in params]) * generated_NV


def filter_logits(logits_NV: Tensor, params: Sequence[SamplingParams], candidates: int = 256) -> Tensor:
    """Applies each row's temperature, top-k, top-p and min-p in this order; dropped tokens become -inf.

    Each looks at what the ones before it left, renormalised. Temperatures must be above 0. The likeliest token always
    stays; among equals the lower id is the likelier. Returns float64 [N, V].

    Sorting is dear, so that only so many `candidates`, or twice top-k, are sorted first, and all tokens of the rows
    where that does not decide it.
    """

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[:, None]

    # float64, and the maximum at 0, because any temperature above 0 must give a distribution
    scaled_NV = logits_NV.double()
    scaled_NV -= scaled_NV.amax(-1, keepdim=True)
    scaled_NV /= column([p.temperature for p in params])
    if all(p.top_k == 0 and p.top_p == 1.0 and p.min_p == 0.0 for p in params):
        return scaled_NV
    vocabulary = scaled_NV.shape[1]
    candidates = min(vocabulary, max([candidates, *(2 * p.top_k for p in params)]))
    ids_NC = logits_NV.topk(candidates).indices.sort().values  # equals keep their order in a stable sort
    values_NC, order_NC = scaled_NV.gather(1, ids_NC).sort(dim=-1, descending=True, stable=True)
    kept_count_N1 = column([min(p.top_k or vocabulary, vocabulary) for p in params])
    weights_NC = values_NC.exp().masked_fill_(torch.arange(candidates) >= kept_count_N1, 0.0)
    total_N1 = torch.where(
        kept_count_N1 < vocabulary, weights_NC.sum(-1, keepdim=True), scaled_NV.exp().sum(-1, keepdim=True)
    )
    probs_NC = weights_NC / total_N1
    top_p_N1 = column([p.top_p if p.top_p < 1.0 else 2.0 for p in params])  # at 1, rounding must not cost the tail
    keep_NC = (probs_NC.cumsum(-1) - probs_NC < top_p_N1) & (torch.arange(candidates) < kept_count_N1)
    keep_NC &= probs_NC >= column([p.min_p for p in params]) * probs_NC[:, :1]
    keep_NC[:, 0] = True
    keep_NV = torch.zeros_like(scaled_NV, dtype=torch.bool).scatter_(1, ids_NC.gather(1, order_NC), keep_NC)
    kept_NV = scaled_NV.masked_fill_(~keep_NV, float("-inf"))
    if candidates < vocabulary:
        # a token that is no candidate may be as likely as the last of them
        surely_N = (values_NC > values_NC[:, -1:]).sum(-1)
        open_ = (keep_NC.sum(-1) > surely_N).nonzero()[:, 0].tolist()
        if open_:
            kept_NV[open_] = filter_logits(logits_NV[open_], [params[n] for n in open_], vocabulary)
    return kept_NV


def sample(logits_NV: Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator]) -> list[int]:
    """Draws one id for each row of host logits, from its own generator; greedy takes the lowest id of equal maxima."""
    chosen_N = logits_NV.argmax(-1)  # the first of equals
    drawn = [n for n, p in enumerate(params) if p.temperature > 0.0]
    if drawn:
        kept_NV = filter_logits(
            logits_NV if len(drawn) == len(params) else logits_NV[drawn], [params[n] for n in drawn]
        )
        sums_NV = kept_NV.exp_().cumsum(-1)
        draws = [torch.rand(1, dtype=torch.float64, generator=generators[n]) for n in drawn]
        total_N1 = sums_NV[:, -1:]
        draw_N1 = torch.minimum(torch.stack(draws) * total_N1, torch.nextafter(total_N1, torch.zeros_like(total_N1)))
        chosen_N[drawn] = torch.searchsorted(sums_NV, draw_N1, right=True)[:, 0]
    chosen: list[int] = chosen_N.tolist()
    return chosen
