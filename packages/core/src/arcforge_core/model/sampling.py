"""Drawing the next token of every row of a batch, each by its own parameters. Shapes: N rows, V vocabulary.

A draw is an exponential race (`arcforge_core.ops.race`), whose noise is a function of seed and place alone. So two
distributions that are nearly the same mostly give the same token, which gets drafts of a smaller model accepted without
changing what is drawn (Daliri, Musco, Suresh 2024, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arcforge_core.contracts.engine import SamplingParams, TopLogprobs
from arcforge_core.errors import CheckpointError
from arcforge_core.ops.likeliest import likeliest as plain_likeliest
from arcforge_core.ops.race import noise
from arcforge_core.ops.race import race as plain_race

BINS, FAINT = 2048, 40.0
"""Of a nucleus: bins, and how far below the largest logit the last of them begins; exp(-40) weighs next to nothing."""


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


Likeliest = tuple[Tensor, Tensor]
"""What `ops.likeliest` says about rows of logits, on the host."""

Race = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`ops.race`, or a kernel of it."""


def next_tokens(
    logits_NV: Tensor,
    samplers: Sequence[Sampler],
    allowed: Sequence[Tensor | None] | None = None,
    ahead: Sequence[int] | None = None,
    likeliest: Likeliest | None = None,
    race: Race = plain_race,
) -> list[Token]:
    """Draws a token for each row of host logits; the samplers have yet to observe it.

    Args:
        logits_NV: finite logits.
        samplers: one for each row.
        allowed: of each row bool [V], the tokens that its grammar lets through, or None.
        ahead: how many places behind its sampler's next one each row is; of samplers that count tokens, 0.
        likeliest: what is known of the rows, computed if it is not given.
        race: how rows without filters are drawn.
    """
    likeliest = likeliest or plain_likeliest(logits_NV)
    ids = choose(logits_NV, samplers, allowed, ahead, likeliest[0], race)
    return score(logits_NV, ids, [sampler.params.top_logprobs for sampler in samplers], likeliest)


def choose(
    logits_NV: Tensor,
    samplers: Sequence[Sampler],
    allowed: Sequence[Tensor | None] | None = None,
    ahead: Sequence[int] | None = None,
    best_N: Tensor | None = None,
    race: Race = plain_race,
) -> list[int]:
    """`next_tokens` without log-probs; `best_N`, if known, are the likeliest: unchanged greedy rows need no more."""
    allowed = allowed or [None] * len(samplers)
    places = [sampler.drawn + more for sampler, more in zip(samplers, ahead or [0] * len(samplers), strict=True)]
    ids: list[int] = (logits_NV.argmax(-1) if best_N is None else best_N).tolist()
    others = [n for n, s in enumerate(samplers) if s.params.temperature > 0.0 or _changes(s, allowed[n])]
    if others:
        rows_NV = logits_NV if len(others) == len(samplers) else logits_NV[others]
        wide_NV = rows_NV.to(torch.promote_types(rows_NV.dtype, torch.float32))
        mine = [samplers[n] for n in others]
        changed_NV = adjust(wide_NV, mine, [allowed[n] for n in others])
        drawn = sample(changed_NV, [s.params for s in mine], [s.seed for s in mine], [places[n] for n in others], race)
        for n, token in zip(others, drawn, strict=True):
            ids[n] = token
    return ids


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


def filter_logits(logits_NV: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Applies each row's temperature, top-k, top-p and min-p in this order; dropped tokens become -inf.

    Each looks at what the ones before it left, renormalised. Temperatures must be above 0. The likeliest token always
    stays; among equals the lower id is the likelier. Returns float64 [N, V].
    """
    kept_NV = torch.full_like(logits_NV, float("-inf"), dtype=torch.float64)
    for kept_V, logits_V, p in zip(kept_NV, logits_NV, params, strict=True):
        scaled_V = _scaled(logits_V, p)
        ids_K = _kept(scaled_V, p)
        kept_V[ids_K] = scaled_V[ids_K]
    return kept_NV


def sample(
    logits_NV: Tensor,
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    places: Sequence[int],
    race: Race = plain_race,
) -> list[int]:
    """Draws one id for each row of host logits, by its seed and place; greedy takes the lowest id of equal maxima."""
    vocabulary = logits_NV.shape[1]
    chosen = [-1] * len(params)
    whole = [n for n, p in enumerate(params) if p.temperature > 0.0 and not _filters(p, vocabulary)]
    if whole:
        rows_NV = logits_NV if len(whole) == len(params) else logits_NV[whole]
        temperature_N = torch.tensor([params[n].temperature for n in whole], dtype=torch.float64)
        seed_N, place_N = (torch.tensor([of[n] for n in whole]) for of in (seeds, places))
        for n, token in zip(whole, race(rows_NV, temperature_N, seed_N, place_N).tolist(), strict=True):
            chosen[n] = token
    for n, (p, seed, place) in enumerate(zip(params, seeds, places, strict=True)):
        if p.temperature == 0.0:
            chosen[n] = int(logits_NV[n].argmax())  # the first of equals
        elif chosen[n] < 0:
            chosen[n] = _draw(logits_NV[n], p, seed, place)
    return chosen


def _filters(params: SamplingParams, vocabulary: int) -> bool:
    """Says whether top-k, top-p or min-p may drop anything."""
    return 0 < params.top_k < vocabulary or params.top_p < 1.0 or params.min_p > 0.0


def _draw(logits_V: Tensor, params: SamplingParams, seed: int, place: int) -> int:
    """Draws from what the filters leave. A row at a time stays in the processor's caches."""
    scaled_V = _scaled(logits_V, params)
    ids_K = _kept(scaled_V, params)
    chosen = int(scaled_V[ids_K].exp().div_(noise(seed, place, len(scaled_V), ids_K)).argmax())
    return chosen if isinstance(ids_K, slice) else int(ids_K[chosen])


def _scaled(logits_V: Tensor, params: SamplingParams) -> Tensor:
    """Returns float64 logits with the maximum at 0, because any temperature above 0 must give a distribution."""
    scaled_V = logits_V.double()
    scaled_V -= scaled_V.max()
    return scaled_V.div_(params.temperature)


def _kept(scaled_V: Tensor, params: SamplingParams) -> Tensor | slice:
    """Returns the ids that top-k, top-p and min-p leave, ascending; a slice where they leave all.

    What each leaves are the first tokens of the same order, so that the order itself is needed around the cuts only.
    """
    ids_K: Tensor | slice = slice(None)
    if 0 < params.top_k < len(scaled_V):
        ids_K = _likeliest(scaled_V, params.top_k)
    if params.top_p < 1.0:
        places_K = _nucleus(scaled_V[ids_K], params.top_p)
        ids_K = places_K if isinstance(ids_K, slice) else ids_K[places_K]
    if params.min_p > 0.0:
        places_K = (scaled_V[ids_K].exp() >= params.min_p).nonzero()[:, 0]  # the likeliest weighs exp(0)
        ids_K = places_K if isinstance(ids_K, slice) else ids_K[places_K]
    return ids_K


def _likeliest(scaled_V: Tensor, count: int) -> Tensor:
    """Returns the ids of the `count` largest, the lower ones of equals, ascending."""
    least = scaled_V.topk(count, sorted=False).values.min()
    above_V, equal_V = scaled_V > least, scaled_V == least
    missing = count - int(above_V.sum())
    return (above_V | (equal_V & (equal_V.cumsum(0) <= missing))).nonzero()[:, 0]


def _nucleus(scaled_V: Tensor, mass: float) -> Tensor:
    """Returns the ids of the fewest largest that have this share of the whole weight, ascending.

    Tokens go into bins by size; only the bin in which the share is reached is sorted.
    """
    weights_V = scaled_V.exp()
    width = float((-scaled_V.min()).clamp(1e-300, FAINT)) / BINS
    bin_V = (scaled_V / -width).clamp_(max=BINS - 1).long()
    mass_B = torch.bincount(bin_V, weights_V, minlength=BINS)
    above_B = mass_B.cumsum(0) - mass_B
    share = mass * float(mass_B.sum())
    last = int((above_B < share).sum()) - 1
    ids_K = (bin_V == last).nonzero()[:, 0]
    ids_K = ids_K[scaled_V[ids_K].argsort(descending=True, stable=True)]  # equals keep their order
    weights_K = weights_V[ids_K]
    keep_V = bin_V < last
    keep_V[ids_K[above_B[last] + weights_K.cumsum(0) - weights_K < share]] = True
    return keep_V.nonzero()[:, 0]
