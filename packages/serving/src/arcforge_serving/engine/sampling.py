"""Samples the tokens of a step: one per sequence, and one more for each accepted draft.

Every token is sampled from the main model's logits with noise that seed and position determine
(`arcforge_core.generation.sampling`). A draft is accepted when it equals the token sampled at its position, so drafts
change only how many tokens a step yields. Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from arcforge_core.contracts.engine import Token
from arcforge_core.generation.sampling import ArgmaxLogprob, SampleOp, finite_rows, next_tokens
from arcforge_core.ops import reference
from arcforge_serving.engine.scheduler import Segment


@dataclass
class Sampled:
    """The tokens sampled for a segment.

    Attributes:
        tokens: in order; the last one is not a draft, or the sequence ends with it.
        finite: whether the logits were; there are no tokens where not.
        error: raised by the request's grammar after `tokens`.
    """

    tokens: list[Token] = field(default_factory=list)
    finite: bool = True
    error: Exception | None = None


def sample_segments(
    segments: Sequence[Segment],
    logits_RV: Tensor,
    known: ArgmaxLogprob,
    allowed: Sequence[Tensor | None] | None,
    sample_op: SampleOp = reference.sample,
) -> list[Sampled]:
    """Samples for segments whose last ``1 + drafts`` rows follow one another in host logits.

    All rows of a segment are sampled together unless a grammar, a penalty or a least length makes each
    depend on the one before.

    Args:
        segments: those that sample.
        logits_RV: in the compute dtype.
        known: `ArgmaxLogprob` of their rows.
        allowed: of each segment bool [V], what its grammar lets through; None asks the grammars here, place by place,
            and has them accept each token.
        sample_op: samples the rows without filters.
    """
    finite = finite_rows(known)
    if allowed is not None and len(finite) == len(segments) and all(finite):  # the usual step: a row each
        samplers = [segment.sequence.sampler for segment in segments]
        sampled = [Sampled() for _ in segments]
        tokens = next_tokens(logits_RV, samplers, allowed, known=known, sample_op=sample_op)
        for segment, of_segment, token in zip(segments, sampled, tokens, strict=True):
            _take(segment, of_segment, token, accept=False)
        return sampled
    ends = list(itertools.accumulate(1 + segment.drafts for segment in segments))
    firsts = [end - 1 - segment.drafts for end, segment in zip(ends, segments, strict=True)]
    sampled = [Sampled(finite=all(finite[first:end])) for first, end in zip(firsts, ends, strict=True)]
    waiting = [n for n, each in enumerate(sampled) if each.finite]
    while waiting:
        places: list[tuple[int, int]] = []
        masks: list[Tensor | None] = []
        for n in waiting:
            mask = _ask(segments[n], sampled[n]) if allowed is None else allowed[n]
            if sampled[n].error is None:
                now = _places(segments[n], len(sampled[n].tokens))
                places += [(n, place) for place in now]
                masks += [mask] * len(now)
        if not places:
            break
        rows = [firsts[n] + place for n, place in places]
        logits_NV, of_rows = logits_RV, known
        if len(rows) < len(logits_RV):
            logits_NV, of_rows = logits_RV[rows], (known[0][rows], known[1][rows])
        samplers = [segments[n].sequence.sampler for n, _ in places]
        ahead = [place - len(sampled[n].tokens) for n, place in places]
        drawn = zip(places, next_tokens(logits_NV, samplers, masks, ahead, of_rows, sample_op), strict=True)
        waiting = []
        for n, group in itertools.groupby(drawn, key=lambda pair: pair[0][0]):
            if all(_take(segments[n], sampled[n], token, accept=allowed is None) for _, token in group):
                waiting.append(n)
    return sampled


def _places(segment: Segment, first: int) -> Sequence[int]:
    """Returns the places of a segment that can be sampled next."""
    sequence = segment.sequence
    free = sequence.matcher is None and not sequence.params.penalises and not sequence.sampler.withholds
    return range(first, 1 + segment.drafts) if free else [first]


def _ask(segment: Segment, sampled: Sampled) -> Tensor | None:
    """Returns what the grammar allows next; already known if it masked the first draft."""
    sequence = segment.sequence
    if sequence.matcher is None or sequence.finished:
        return None
    if sequence.mask is not None:
        return sequence.mask
    try:
        return sequence.matcher.allowed()
    except Exception as error:  # of this request's grammar
        sampled.error = error
        return None


def _take(segment: Segment, sampled: Sampled, token: Token, accept: bool) -> bool:
    """Appends a token to a segment; returns whether it was drafted, so that the next place is valid too."""
    sequence, place = segment.sequence, len(sampled.tokens)
    sampled.tokens.append(token)
    sequence.sampler.observe(token.id)
    sequence.latest, sequence.mask = token.id, None
    if accept and sequence.matcher is not None:
        try:
            sequence.matcher.accept(token.id)
            if sequence.matcher.finished:
                return False
        except Exception as error:  # of this request's grammar
            sampled.error = error
            return False
    accepted = place < segment.drafts and token.id == sequence.drafts[place]
    return accepted and token.id not in sequence.params.stop_token_ids
