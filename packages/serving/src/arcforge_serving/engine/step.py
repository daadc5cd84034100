"""A step: built on the host ahead of time, computed by the worker.

Shapes: N segments, T tokens, R rows that are sampled from, P pages, S tokens of a prompt, D hidden size, V vocabulary.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.engine import Token
from arcforge_serving.engine.sampling import Sampled
from arcforge_serving.engine.scheduler import Move, Scheduler, Segment
from arcforge_serving.engine.sequence import SequenceState


@dataclass
class Step:
    """A step's batch and results.

    Attributes:
        segments: in the order of the batch.
        moves: what happens to pages first.
        tokens_T: ids, 0 where the step before samples them.
        holes: rows of `tokens_T` and the sequences whose latest token belongs there.
        batch: the layout.
        version: of the weights.
        drafting: tokens to draft after the step, for each sequence that samples.
        in_turns: whether the next step waits for this one's output, so that the worker asks the grammars.
        ahead_T: the next token of each token, 0 where the step samples it; None without drafting.
        pages_NP, rooms: of the segments that draw all pages, and the positions that they hold.
        allowed: for each segment that samples, the ids that its grammar allows; set while the step is computed.
        output: set by the worker.
    """

    segments: list[Segment]
    moves: list[Move]
    tokens_T: Tensor
    holes: list[tuple[int, SequenceState]]
    batch: SequenceBatch
    version: int
    drafting: int = 0
    in_turns: bool = False
    ahead_T: Tensor | None = None
    pages_NP: Tensor | None = None
    rooms: list[int] = field(default_factory=list)
    allowed: Future[list[Tensor | None]] = field(default_factory=Future)
    output: Future[StepOutput] = field(default_factory=Future)

    @property
    def sampled_sequences(self) -> list[SequenceState]:
        """Sequences that get a token."""
        return [segment.sequence for segment in self.sampling]

    @cached_property
    def sampling(self) -> list[Segment]:
        """Their segments."""
        return [segment for segment in self.segments if segment.samples]

    @cached_property
    def sample_rows(self) -> list[int]:
        """The first row of each of them whose next token is sampled."""
        ends = itertools.accumulate(segment.length for segment in self.segments)
        rows = zip(ends, self.segments, strict=True)
        return [end - 1 - segment.drafts for end, segment in rows if segment.samples]


@dataclass(frozen=True)
class StepOutput:
    """The results of a step.

    Attributes:
        sampled: of each sequence that samples.
        drafts: of each of them, for the next step to check.
        prompt_tokens: by segment number, the prompt's tokens that its rows say something about.
    """

    sampled: list[Sampled]
    drafts: list[list[int]]
    prompt_tokens: dict[int, list[Token]]


def build(
    scheduler: Scheduler, segments: list[Segment], version: int, drafting: int = 0, in_turns: bool = False
) -> Step:
    """Concatenates the segments' tokens and finds their cache rows."""
    size, lengths = scheduler.size, [segment.length for segment in segments]
    starts_N = np.array([segment.start for segment in segments])
    lengths_N = np.array(lengths)
    slots_N = np.array([segment.sequence.slot for segment in segments])
    ends_N = lengths_N.cumsum()
    positions_T = np.arange(ends_N[-1]) + np.repeat(starts_N - ends_N + lengths_N, lengths_N)
    rows_T = scheduler.table_NP[np.repeat(slots_N, lengths_N), positions_T // size] * size + positions_T % size
    most = -(-int((starts_N + lengths_N).max()) // size)
    tokens: list[int] = []
    holes = []
    for segment in segments:
        sequence, end = segment.sequence, segment.start + segment.length - segment.drafts
        tokens += sequence.tokens[segment.start : end]
        if end > len(sequence.tokens):
            holes.append((len(tokens), sequence))
            tokens.append(0)
        tokens += sequence.drafts[: segment.drafts]
    batch = SequenceBatch.build(
        lengths,
        starts_N.tolist(),
        write_slots_T=torch.from_numpy(rows_T),
        pages_NP=torch.from_numpy(scheduler.table_NP[slots_N, :most]),
        state_slots_N=torch.from_numpy(slots_N),
    )
    moves, scheduler.moves = scheduler.moves, []
    step = Step(segments, moves, torch.tensor(tokens), holes, batch, version, drafting, in_turns)
    if scheduler.draft_tokens:
        ahead: list[int] = []
        for segment in segments:
            known = segment.sequence.tokens[segment.start + 1 : segment.start + segment.length + 1]
            ahead += known + [0] * (segment.length - len(known))
        step.ahead_T = torch.tensor(ahead)
    if drafting and step.sampling:
        held = [len(segment.sequence.pages) for segment in step.sampling]
        sampling_N = np.array([segment.sequence.slot for segment in step.sampling])
        step.pages_NP = torch.from_numpy(scheduler.table_NP[sampling_N, : max(held)])
        step.rooms = [pages * size for pages in held]
    return step
