"""Samples the next token of every row of a batch with the row's own parameters. Shapes: N rows, V vocabulary.

Sampling is an exponential race (`arcforge_core.ops.reference.sample`) whose noise is a function of seed and place only.
Two nearly equal distributions therefore mostly yield the same token, so drafts of a smaller model are accepted more
often without changing the sampled tokens (Daliri, Musco, Suresh 2024, arXiv 2408.07978).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from arcforge_core.contracts.engine import SamplingParams, Token, TopLogprobs
from arcforge_core.errors import CheckpointError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops import reference

BINS, FAINT = 2048, 40.0
"""Bins of a nucleus, and the distance from the largest logit to the last bin; exp(-40) has negligible weight."""


class Sampler:
    """The per-sequence state that the choice of the next token depends on.

    Args:
        params: its parameters.
        index: index of the sequence among the ``params.n`` sequences of its request.
        prompt: ids that the repetition penalty counts as already used.
        vocabulary: V.

    Attributes:
        drawn: number of sampled tokens, which is the place of the next one.
    """

    def __init__(self, params: SamplingParams, index: int, prompt: Sequence[int], vocabulary: int) -> None:
        self.params, self.seed, self.drawn = params, params.seed + index, 0
        self.counts_V: Tensor | None = None
        if params.penalises:
            self.counts_V = torch.zeros(vocabulary)
            self.prompted_V = torch.zeros(vocabulary, dtype=torch.bool)
            self.prompted_V[list(prompt)] = True

    @property
    def withholds(self) -> bool:
        """Whether the next token must not end the sequence."""
        return self.drawn < self.params.min_new_tokens and bool(self.params.stop_token_ids)

    def observe(self, token: int) -> None:
        """Counts a sampled token."""
        self.drawn += 1
        if self.counts_V is not None:
            self.counts_V[token] += 1

    def forget(self, token: int) -> None:
        """Undoes the last `observe`."""
        self.drawn -= 1
        if self.counts_V is not None:
            self.counts_V[token] -= 1


ArgmaxLogprob = tuple[Tensor, Tensor]
"""The result of the op ``argmax_logprob`` for rows of logits, on the host."""

SampleOp = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""The op ``sample``: the reference, or a kernel."""


class SamplingOps:
    """The two sampling ops, bound for a model's logits.

    Attributes:
        sample: draws a token for each row of logits.
    """

    def __init__(self, model: CausalLM) -> None:
        bind, vocabulary = model.ops.binder(model.dtype, model.device), model.config.vocab_size
        self.sample: SampleOp = bind("sample", vocab=vocabulary)
        self._argmax_logprob = bind("argmax_logprob", vocab=vocabulary)

    def argmax_logprob(self, logits_NV: Tensor) -> ArgmaxLogprob:
        """Returns each row's argmax and its negative log-prob, on the host."""
        best_N, rest_N = self._argmax_logprob(logits_NV)
        return best_N.cpu(), rest_N.cpu()


def next_tokens(
    logits_NV: Tensor,
    samplers: Sequence[Sampler],
    allowed: Sequence[Tensor | None] | None = None,
    ahead: Sequence[int] | None = None,
    known: ArgmaxLogprob | None = None,
    sample_op: SampleOp = reference.sample,
) -> list[Token]:
    """Samples a token for each row of host logits; the caller passes it to the sampler's `observe`.

    Args:
        logits_NV: finite logits.
        samplers: one for each row.
        allowed: for each row, bool [V] with the tokens that its grammar accepts, or None.
        ahead: for each row, its distance in places from its sampler's next one; 0 for samplers that count tokens.
        known: the rows' `ArgmaxLogprob`; computed if not given.
        sample_op: samples the rows without filters.
    """
    known = known or reference.argmax_logprob(logits_NV)
    ids = choose(logits_NV, samplers, allowed, ahead, known[0], sample_op)
    params = [sampler.params for sampler in samplers]
    temperatures = [p.temperature if p.sampled_logprobs else 1.0 for p in params]
    return score(logits_NV, ids, [p.top_logprobs for p in params], known, temperatures)


def choose(
    logits_NV: Tensor,
    samplers: Sequence[Sampler],
    allowed: Sequence[Tensor | None] | None = None,
    ahead: Sequence[int] | None = None,
    best_N: Tensor | None = None,
    sample_op: SampleOp = reference.sample,
) -> list[int]:
    """`next_tokens` without log-probs; `best_N` are the argmaxes, if known: unmodified greedy rows need no more."""
    allowed = allowed or [None] * len(samplers)
    places = [sampler.drawn + more for sampler, more in zip(samplers, ahead or [0] * len(samplers), strict=True)]
    ids: list[int] = (logits_NV.argmax(-1) if best_N is None else best_N).tolist()
    others = [n for n, s in enumerate(samplers) if s.params.temperature > 0.0 or _changes(s, allowed[n])]
    if others:
        rows_NV = logits_NV if len(others) == len(samplers) else logits_NV[others]
        wide_NV = rows_NV.to(torch.promote_types(rows_NV.dtype, torch.float32))
        mine = [samplers[n] for n in others]
        changed_NV = adjust(wide_NV, mine, [allowed[n] for n in others])
        params, seeds = [s.params for s in mine], [s.seed for s in mine]
        drawn = sample(changed_NV, params, seeds, [places[n] for n in others], sample_op)
        for n, token in zip(others, drawn, strict=True):
            ids[n] = token
    return ids


def _changes(sampler: Sampler, allowed_V: Tensor | None) -> bool:
    """Returns whether `adjust` changes a row."""
    changed = bool(sampler.params.logit_bias) or sampler.counts_V is not None or sampler.withholds
    return changed or allowed_V is not None


def finite_rows(known: ArgmaxLogprob) -> list[bool]:
    """Returns, for each row, whether all its logits are finite."""
    return [math.isfinite(rest) for rest in known[1].tolist()]


def check_finite(known: ArgmaxLogprob) -> None:
    """Raises `CheckpointError` when a logit is not finite."""
    if not all(finite_rows(known)):
        raise CheckpointError("the model's logits are not finite: its weights are damaged or have diverged")


def log_probs(logits_NV: Tensor, temperatures: Sequence[float] = (1.0,)) -> Tensor:
    """Returns ``log_softmax(logits / temperature)``, fp32 or wider, differentiable.

    Engines and the trainer of reinforcement learning both call it, so that they round in the same way.

    Args:
        logits_NV: any floating dtype.
        temperatures: above 0; one for each row, or one for all.
    """
    wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    if any(temperature != 1.0 for temperature in temperatures):
        wide_NV = wide_NV / wide_NV.new_tensor(temperatures)[:, None]
    return wide_NV.log_softmax(-1)


def score(
    logits_NV: Tensor,
    ids: Sequence[int],
    top: Sequence[int],
    known: ArgmaxLogprob | None = None,
    temperatures: Sequence[float] | None = None,
) -> list[Token]:
    """Returns each row's token with its log-prob, and the `top` most likely tokens.

    Args:
        logits_NV: finite logits.
        ids: the token of each row.
        top: the number of most likely tokens to report for each row.
        known: the rows' `ArgmaxLogprob`; computed if not given.
        temperatures: of each row's log-probs; None is 1 for all.
    """
    best_N, rest_N = known or reference.argmax_logprob(logits_NV)
    largest_N1, rest_N1 = logits_NV.gather(1, best_N[:, None]).to(rest_N.dtype), rest_N[:, None]
    rows = torch.tensor([n for n, t in enumerate(temperatures or ()) if t != 1.0], dtype=torch.int64)
    scaled_RV = log_probs(logits_NV[rows], [t for t in temperatures or () if t != 1.0]) if len(rows) else None

    def at(ids_NK: Tensor) -> Tensor:
        found_NK = logits_NV.gather(1, ids_NK).to(rest_N.dtype) - largest_N1 - rest_N1
        return found_NK if scaled_RV is None else found_NK.index_copy(0, rows, scaled_RV.gather(1, ids_NK[rows]))

    chosen_N = at(torch.tensor(ids)[:, None])[:, 0].tolist()
    tops: list[TopLogprobs] = [[] for _ in ids]
    asked = [n for n, count in enumerate(top) if count]
    if asked:
        most = min(max(top), logits_NV.shape[1])
        ids_NK = torch.zeros(len(ids), most, dtype=torch.int64)
        ids_NK[asked] = logits_NV[asked].topk(most).indices
        values_AK, numbers_AK = at(ids_NK)[asked].tolist(), ids_NK[asked].tolist()
        for n, values, numbers in zip(asked, values_AK, numbers_AK, strict=True):
            pairs = sorted(zip(numbers, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
            tops[n] = pairs[: top[n]]
    return [Token(*token) for token in zip(ids, chosen_N, tops, strict=True)]


def adjust(logits_NV: Tensor, samplers: Sequence[Sampler], allowed: Sequence[Tensor | None]) -> Tensor:
    """Applies logit bias, repetition, frequency and presence penalties, grammars and ``min_new_tokens``, in this order,
    to a copy."""
    biased = [n for n, s in enumerate(samplers) if s.params.logit_bias]
    penalised = [n for n, s in enumerate(samplers) if s.counts_V is not None]
    masked = [n for n, mask in enumerate(allowed) if mask is not None]
    early = [n for n, s in enumerate(samplers) if s.withholds]
    if not biased and not penalised and not masked and not early:
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
    for n in early:
        going_V = logits_NV[n].clone()
        going_V[list(samplers[n].params.stop_token_ids)] = float("-inf")
        if going_V.max() > float("-inf"):  # else its grammar ends here
            logits_NV[n] = going_V
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
    """Applies each row's temperature, top-k, top-p and min-p in this order; filtered tokens become -inf.

    Each filter sees the renormalised result of the previous ones. Temperatures must be above 0. The most likely token
    is always kept; among equal logits the lower id counts as the more likely. Returns float64 [N, V].
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
    sample_op: SampleOp = reference.sample,
) -> list[int]:
    """Samples one id for each row of host logits by seed and place; greedy takes the lowest id of equal maxima."""
    vocabulary = logits_NV.shape[1]
    chosen = [-1] * len(params)
    whole = [n for n, p in enumerate(params) if p.temperature > 0.0 and not _filters(p, vocabulary)]
    if whole:
        rows_NV = logits_NV if len(whole) == len(params) else logits_NV[whole]
        temperature_N = torch.tensor([params[n].temperature for n in whole], dtype=torch.float64)
        seed_N, place_N = (torch.tensor([of[n] for n in whole]) for of in (seeds, places))
        for n, token in zip(whole, sample_op(rows_NV, temperature_N, seed_N, place_N).tolist(), strict=True):
            chosen[n] = token
    for n, (p, seed, place) in enumerate(zip(params, seeds, places, strict=True)):
        if p.temperature == 0.0:
            chosen[n] = int(logits_NV[n].argmax())  # the first of equals
        elif chosen[n] < 0:
            chosen[n] = _draw(logits_NV[n], p, seed, place)
    return chosen


def _filters(params: SamplingParams, vocabulary: int) -> bool:
    """Returns whether top-k, top-p or min-p may drop anything."""
    return 0 < params.top_k < vocabulary or params.top_p < 1.0 or params.min_p > 0.0


def _draw(logits_V: Tensor, params: SamplingParams, seed: int, place: int) -> int:
    """Samples from the tokens that pass the filters. One row at a time fits in the processor's caches."""
    scaled_V = _scaled(logits_V, params)
    ids_K = _kept(scaled_V, params)
    chosen = int(scaled_V[ids_K].exp().div_(reference.noise(seed, place, len(scaled_V), ids_K)).argmax())
    return chosen if isinstance(ids_K, slice) else int(ids_K[chosen])


def _scaled(logits_V: Tensor, params: SamplingParams) -> Tensor:
    """Returns float64 logits with the maximum at 0, so that every temperature above 0 gives a distribution."""
    scaled_V = logits_V.to(torch.float64, copy=True)
    scaled_V -= scaled_V.max()
    return scaled_V.div_(params.temperature)


def _kept(scaled_V: Tensor, params: SamplingParams) -> Tensor | slice:
    """Returns the ids that top-k, top-p and min-p keep, ascending; a slice if they keep all.

    Each filter keeps a prefix of the same order, so only the positions near the cutoffs need sorting.
    """
    ids_K: Tensor | slice = slice(None)
    if 0 < params.top_k < len(scaled_V):
        ids_K = _largest(scaled_V, params.top_k)
    if params.top_p < 1.0:
        places_K = _nucleus(scaled_V[ids_K], params.top_p)
        ids_K = places_K if isinstance(ids_K, slice) else ids_K[places_K]
    if params.min_p > 0.0:
        places_K = (scaled_V[ids_K].exp() >= params.min_p).nonzero()[:, 0]  # the most likely token has weight exp(0)
        ids_K = places_K if isinstance(ids_K, slice) else ids_K[places_K]
    return ids_K


def _largest(scaled_V: Tensor, count: int) -> Tensor:
    """Returns the ids of the `count` largest values, ascending; among equal values the lower ids."""
    least = scaled_V.topk(count, sorted=False).values.min()
    above_V, equal_V = scaled_V > least, scaled_V == least
    missing = count - int(above_V.sum())
    return (above_V | (equal_V & (equal_V.cumsum(0) <= missing))).nonzero()[:, 0]


def _nucleus(scaled_V: Tensor, mass: float) -> Tensor:
    """Returns the smallest set of most likely ids whose share of the total weight reaches `mass`, ascending.

    Tokens are binned by logit; only the bin in which the share is reached is sorted.
    """
    weights_V = scaled_V.exp()
    width = float((-scaled_V.min()).clamp(1e-300, FAINT)) / BINS
    bin_V = (scaled_V / -width).clamp_(max=BINS - 1).long()
    mass_B = torch.bincount(bin_V, weights_V, minlength=BINS)
    above_B = mass_B.cumsum(0) - mass_B
    share = mass * float(mass_B.sum())
    last = int((above_B < share).sum()) - 1
    ids_K = (bin_V == last).nonzero()[:, 0]
    ids_K = ids_K[scaled_V[ids_K].argsort(descending=True, stable=True)]  # equal values keep their order
    weights_K = weights_V[ids_K]
    keep_V = bin_V < last
    keep_V[ids_K[above_B[last] + weights_K.cumsum(0) - weights_K < share]] = True
    return keep_V.nonzero()[:, 0]
