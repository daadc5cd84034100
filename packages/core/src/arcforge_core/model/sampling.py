"""Drawing the next token of every row of a batch, each by its own parameters. Shapes: N rows, V vocabulary.

A draw is an exponential race: of tokens with probabilities p and independent exponential noise e the one with the
largest ``p / e`` is drawn, which is exact (Gumbel-max; Yellott 1977). The noise is a function of seed and place alone.
So two distributions that are nearly the same mostly give the same token, which gets drafts of a smaller model accepted
without changing what is drawn (Daliri, Musco, Suresh 2024, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from arcforge_core.contracts.engine import SamplingParams, TopLogprobs
from arcforge_core.errors import CheckpointError


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

    Attributes:
        drawn: tokens that were drawn, the place of the next one.
    """

    def __init__(self, params: SamplingParams, index: int, prompt: Sequence[int], vocabulary: int) -> None:
        self.params, self.seed, self.drawn = params, params.seed + index, 0
        self.counts_V: Tensor | None = None
        if params.penalises:
            self.counts_V = torch.zeros(vocabulary)
            self.prompted_V = torch.zeros(vocabulary, dtype=torch.bool)
            self.prompted_V[list(prompt)] = True

    def observe(self, token: int) -> None:
        """Goes on by a token that was drawn."""
        self.drawn += 1
        if self.counts_V is not None:
            self.counts_V[token] += 1

    def forget(self, token: int) -> None:
        """Goes back by the token that was observed last."""
        self.drawn -= 1
        if self.counts_V is not None:
            self.counts_V[token] -= 1


def next_tokens(
    logits_NV: Tensor,
    samplers: Sequence[Sampler],
    allowed: Sequence[Tensor | None] | None = None,
    ahead: Sequence[int] | None = None,
) -> list[Token]:
    """Draws a token for each row of host logits in fp32; the samplers have yet to observe it.

    Args:
        logits_NV: finite logits.
        samplers: one for each row.
        allowed: of each row bool [V], the tokens that its grammar lets through, or None.
        ahead: how many places behind its sampler's next one each row is; of samplers that count tokens, 0.
    """
    ids = choose(logits_NV, samplers, allowed, ahead)
    return score(logits_NV, ids, [sampler.params.top_logprobs for sampler in samplers])


def choose(
    logits_NV: Tensor,
    samplers: Sequence[Sampler],
    allowed: Sequence[Tensor | None] | None = None,
    ahead: Sequence[int] | None = None,
) -> list[int]:
    """`next_tokens` without log-probs."""
    changed_NV = adjust(logits_NV, samplers, allowed or [None] * len(samplers))
    places = [sampler.drawn + more for sampler, more in zip(samplers, ahead or [0] * len(samplers), strict=True)]
    return sample(changed_NV, [s.params for s in samplers], [s.seed for s in samplers], places)


def finite_rows(logits_NV: Tensor) -> list[bool]:
    """Says of each row whether all its logits are finite."""
    least_N, most_N = logits_NV.aminmax(dim=-1)
    finite: list[bool] = (least_N.isfinite() & most_N.isfinite()).tolist()  # NaN goes through both
    return finite


def check_finite(logits_NV: Tensor) -> None:
    """Raises `CheckpointError` when a logit is not finite."""
    if not all(finite_rows(logits_NV)):
        raise CheckpointError("the model's logits are not finite: its weights are damaged or have diverged")


def score(logits_NV: Tensor, ids: Sequence[int], top: Sequence[int]) -> list[Token]:
    """Returns each row's token with its log-prob, and those of so many of the likeliest tokens."""
    logprobs_NV = logits_NV.log_softmax(-1)
    chosen_N = logprobs_NV.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    tops: list[TopLogprobs] = [[] for _ in ids]
    asked = [n for n, count in enumerate(top) if count]
    if asked:
        most = min(max(top), logits_NV.shape[1])
        values_NK, ids_NK = logprobs_NV[asked].topk(most)
        for n, values, likeliest in zip(asked, values_NK.tolist(), ids_NK.tolist(), strict=True):
            pairs = sorted(zip(likeliest, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
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


def noise(seed: int, place: int, vocabulary: int) -> Tensor:
    """Returns float64 [V], independent exponential variables above 0: a function of seed and place, on any machine.

    Philox is counted: the place is part of the counter, so that no two places share numbers.
    """
    bits_V = np.random.Philox(key=seed, counter=[0, place, 0, 0]).random_raw(vocabulary)
    uniform_V = torch.from_numpy((bits_V >> np.uint64(11)).astype(np.float64))
    return uniform_V.add_(1.0).mul_(2.0**-53).log_().neg_().clamp_(min=1e-300)


def sample(
    logits_NV: Tensor, params: Sequence[SamplingParams], seeds: Sequence[int], places: Sequence[int]
) -> list[int]:
    """Draws one id for each row of host logits, by its seed and place; greedy takes the lowest id of equal maxima."""
    chosen_N = logits_NV.argmax(-1)  # the first of equals
    drawn = [n for n, p in enumerate(params) if p.temperature > 0.0]
    if drawn:
        kept_NV = filter_logits(
            logits_NV if len(drawn) == len(params) else logits_NV[drawn], [params[n] for n in drawn]
        )
        noise_NV = torch.stack([noise(seeds[n], places[n], logits_NV.shape[1]) for n in drawn])
        chosen_N[drawn] = kept_NV.exp_().div_(noise_NV).argmax(-1)
    chosen: list[int] = chosen_N.tolist()
    return chosen
