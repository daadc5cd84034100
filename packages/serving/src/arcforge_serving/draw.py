"""Drawing the tokens of a step: one for each sequence, and more where drafts turn out to be what is drawn.

Every token is drawn from the main model's logits, by noise that seed and place decide (`arcforge_core.model.sampling`).
A draft is accepted when it is the token that is drawn at its place, so that drafts change nothing but how many tokens a
step gives. Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from torch import Tensor

from arcforge_core.model.sampling import Likeliest, Race, Token, finite_rows, next_tokens
from arcforge_core.ops.race import race
from arcforge_serving.scheduler import Segment


@dataclass
class Drawn:
    """What a segment got.

    Attributes:
        tokens: in order; the last one is not a draft, or the sequence ends with it.
        finite: whether the logits were; there are no tokens where not.
        error: what the request's grammar raised behind `tokens`.
    """

    tokens: list[Token] = field(default_factory=list)
    finite: bool = True
    error: Exception | None = None


def draw(
    segments: Seq[Segment],
    logits_RV: Tensor,
    likeliest: Likeliest,
    allowed: Seq[Tensor | None] | None,
    race: Race = race,
) -> list[Drawn]:
    """Draws for segments whose last ``1 + drafts`` rows follow one another in host logits.

    Where nothing that is drawn changes what may be drawn behind it all rows are drawn at once, else place by place.

    Args:
        segments: those that draw.
        logits_RV: in the compute dtype.
        likeliest: of their rows.
        allowed: of each segment bool [V], what its grammar lets through; None asks the grammars here, place by place,
            and tells them what was drawn.
        race: how rows without filters are drawn.
    """
    ends = list(itertools.accumulate(1 + segment.drafts for segment in segments))
    firsts = [end - 1 - segment.drafts for end, segment in zip(ends, segments, strict=True)]
    finite = finite_rows(likeliest)
    drawn = [Drawn(finite=all(finite[first:end])) for first, end in zip(firsts, ends, strict=True)]
    waiting = [n for n, each in enumerate(drawn) if each.finite]
    while waiting:
        places: list[tuple[int, int]] = []
        masks: list[Tensor | None] = []
        for n in waiting:
            mask = _ask(segments[n], drawn[n]) if allowed is None else allowed[n]
            if drawn[n].error is None:
                now = _places(segments[n], len(drawn[n].tokens))
                places += [(n, place) for place in now]
                masks += [mask] * len(now)
        if not places:
            break
        rows = [firsts[n] + place for n, place in places]
        logits_NV, known = logits_RV, likeliest
        if len(rows) < len(logits_RV):
            logits_NV, known = logits_RV[rows], (likeliest[0][rows], likeliest[1][rows])
        samplers = [segments[n].sequence.sampler for n, _ in places]
        ahead = [place - len(drawn[n].tokens) for n, place in places]
        tokens = zip(places, next_tokens(logits_NV, samplers, masks, ahead, known, race), strict=True)
        waiting = []
        for n, group in itertools.groupby(tokens, key=lambda pair: pair[0][0]):
            if all(_take(segments[n], drawn[n], token, told=allowed is None) for _, token in group):
                waiting.append(n)
    return drawn


def _places(segment: Segment, first: int) -> Seq[int]:
    """Returns the places of a segment that can be drawn from now on."""
    sequence = segment.sequence
    free = sequence.matcher is None and not sequence.params.penalises
    return range(first, 1 + segment.drafts) if free else [first]


def _ask(segment: Segment, drawn: Drawn) -> Tensor | None:
    """Returns what the grammar allows next; it was asked already where the first draft was made."""
    sequence = segment.sequence
    if sequence.matcher is None or sequence.finished:
        return None
    if sequence.mask is not None:
        return sequence.mask
    try:
        return sequence.matcher.allowed()
    except Exception as error:  # of this request's grammar
        drawn.error = error
        return None


def _take(segment: Segment, drawn: Drawn, token: Token, told: bool) -> bool:
    """Gives a segment a token; says whether it was drafted, and the next place counts too."""
    sequence, place = segment.sequence, len(drawn.tokens)
    drawn.tokens.append(token)
    sequence.sampler.observe(token.id)
    sequence.latest, sequence.mask = token.id, None
    if told and sequence.matcher is not None:
        try:
            sequence.matcher.accept(token.id)
            if sequence.matcher.finished:
                return False
        except Exception as error:  # of this request's grammar
            drawn.error = error
            return False
    accepted = place < segment.drafts and token.id == sequence.drafts[place]
    return accepted and token.id not in sequence.params.stop_token_ids
