"""What a request asks of the engine, and what comes back, dialect by dialect the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_serving.server.shared.detokenize import Piece


@dataclass(frozen=True)
class Job:
    """One sequence.

    Attributes:
        prompt: token ids.
        params: how to sample, with ``n=1``.
        stops: strings at which the text ends; `params` ends the generation there.
        hidden: ids that are not text.
        text: whether its tokens are decoded; without, its pieces have no text.
    """

    prompt: Sequence[int]
    params: SamplingParams
    stops: tuple[str, ...] = ()
    hidden: frozenset[int] = frozenset()
    text: bool = True


@dataclass(frozen=True)
class Update:
    """What one sequence has gained.

    Attributes:
        index: which one.
        pieces: in order.
        output: at its end, with the reason.
        stop: the stop string that ended its text.
    """

    index: int
    pieces: list[Piece] = field(default_factory=list)
    output: GenerationOutput | None = None
    stop: str | None = None
